//! Thousands of streams in this process, each a bare socket that is read and looked through for what was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_tests::config::{Replica, TOKEN};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// What one stream saw.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When.
    pub at: Instant,
    /// The value's text.
    pub text: String,
}

/// The streams.
pub struct Watchers {
    tasks: JoinSet<()>,
    /// Updates as they come, without those of the baseline.
    pub seen: mpsc::Receiver<Seen>,
    synced: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
    count: usize,
}

/// Counts itself as closed however it ends.
struct Closing(Arc<AtomicUsize>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Watchers {
    /// Opens so many; `name` gives the name that each follows.
    pub async fn open(
        replica: &Replica,
        count: usize,
        name: impl Fn(usize) -> String,
        tls: Option<TlsConnector>,
    ) -> Self {
        let (send, seen) = mpsc::channel(count * 4 + 1024);
        let (synced, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for i in 0..count {
            let (send, live, closing) = (send.clone(), Arc::clone(&synced), Closing(Arc::clone(&closed)));
            let (name, port, tls) = (name(i), replica.port, tls.clone());
            tasks.spawn(async move {
                let _closing = closing;
                let Some(stream) = dial(port).await else { return };
                match tls {
                    Some(tls) => {
                        let host = "127.0.0.1".try_into().unwrap();
                        if let Ok(stream) = tls.connect(host, stream).await {
                            follow(stream, &name, &send, &live).await;
                        }
                    }
                    None => follow(stream, &name, &send, &live).await,
                }
            });
            // No more at once than a server's backlog takes.
            while i + 1 > synced.load(Ordering::Relaxed) + closed.load(Ordering::Relaxed) + 200 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Self { tasks, seen, synced, closed, count }
    }

    /// Waits until every stream has its baseline.
    pub async fn synced(&mut self) {
        let begun = Instant::now();
        while self.synced.load(Ordering::Relaxed) < self.count {
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "{} of {} are there",
                self.synced.load(Ordering::Relaxed),
                self.count
            );
            assert_eq!(self.closed(), 0, "streams ended before they were there");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many have ended.
    pub fn closed(&self) -> usize {
        self.closed.load(Ordering::Relaxed)
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.tasks.abort_all();
    }
}

async fn dial(port: u16) -> Option<TcpStream> {
    for _ in 0..50 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)).await {
            return Some(stream);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    None
}

async fn follow(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    name: &str,
    send: &mpsc::Sender<Seen>,
    synced: &AtomicUsize,
) {
    let request = format!(
        "GET /v1/watch?name={name} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
    );
    if stream.write_all(request.as_bytes()).await.is_err() {
        return;
    }
    let (mut buffer, mut at, mut live) = (Vec::with_capacity(1024), 0, false);
    loop {
        match stream.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let now = Instant::now();
        // Frames come whole in the usual case; what is not whole waits for more.
        while let Some(end) = find(&buffer[at..], b"\n\n") {
            let frame = &buffer[at..at + end];
            at += end + 2;
            if find(frame, b"event: synced").is_some() {
                live = true;
                synced.fetch_add(1, Ordering::Relaxed);
            } else if live && find(frame, b"event: update").is_some() {
                let text = value(frame);
                if send.send(Seen { at: now, text }).await.is_err() {
                    return;
                }
            }
        }
        buffer.drain(..at);
        at = 0;
    }
}

fn value(frame: &[u8]) -> String {
    use base64::Engine as _;
    let from = find(frame, b"\"bytes\":\"").map_or(0, |at| at + 9);
    let length = find(&frame[from..], b"\"").unwrap_or(0);
    let decoded = base64::prelude::BASE64_STANDARD.decode(&frame[from..from + length]).unwrap_or_default();
    String::from_utf8_lossy(&decoded).into_owned()
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

//! An HTTP upstream whose answers the test decides, and which counts what it was asked.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What it answers on a path.
#[derive(Clone, Debug)]
pub enum Script {
    /// This status, these headers and this body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// Nothing, while the connection stays open.
    Silence,
    /// The connection is closed without an answer.
    Hangup,
    /// The answer after a wait.
    Late(Duration, String),
}

impl Script {
    /// 200 with a body.
    pub fn ok(body: &str) -> Self {
        Self::Answer(200, Vec::new(), body.to_owned())
    }

    /// A bare status.
    pub fn status(status: u16) -> Self {
        Self::Answer(status, Vec::new(), String::new())
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    /// When.
    pub at: Instant,
    /// The path with its query.
    pub path: String,
    /// The head of the request, in full.
    pub head: String,
}

#[derive(Default)]
struct Inner {
    next: Mutex<BTreeMap<String, VecDeque<Script>>>,
    standing: Mutex<BTreeMap<String, Script>>,
    asked: Mutex<Vec<Asked>>,
    open: AtomicUsize,
    most: AtomicUsize,
}

/// The upstream. It ends when it is dropped.
pub struct Upstream {
    address: SocketAddr,
    inner: Arc<Inner>,
    accept: JoinHandle<()>,
}

impl Upstream {
    /// Starts one that answers 404 to everything.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, inner) = (listener.local_addr().unwrap(), Arc::new(Inner::default()));
        let own = Arc::clone(&inner);
        let accept = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&own)));
            }
        });
        Self { address, inner, accept }
    }

    /// What is answered on a path from now on.
    pub fn set(&self, path: &str, script: Script) {
        self.inner.standing.lock().insert(path.to_owned(), script);
    }

    /// What is answered on a path next, once.
    pub fn then(&self, path: &str, script: Script) {
        self.inner.next.lock().entry(path.to_owned()).or_default().push_back(script);
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.inner.asked.lock().clone()
    }

    /// How often a path was asked for.
    pub fn count(&self, path: &str) -> usize {
        self.inner.asked.lock().iter().filter(|asked| asked.path == path).count()
    }

    /// The most connections that were open at once.
    pub fn most_at_once(&self) -> usize {
        self.inner.most.load(Ordering::Relaxed)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The lines of configuration that name it `web`.
    pub fn lines(&self) -> String {
        format!("[upstream.web]\ntype = \"http\"\nbase_url = \"{}\"\nallow_insecure = true\n", self.url())
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

impl Inner {
    fn script(&self, path: &str) -> Script {
        let once = self.next.lock().get_mut(path).and_then(VecDeque::pop_front);
        once.or_else(|| self.standing.lock().get(path).cloned()).unwrap_or_else(|| Script::status(404))
    }
}

async fn serve(stream: TcpStream, inner: Arc<Inner>) {
    let open = inner.open.fetch_add(1, Ordering::Relaxed) + 1;
    inner.most.fetch_max(open, Ordering::Relaxed);
    converse(stream, &inner).await;
    inner.open.fetch_sub(1, Ordering::Relaxed);
}

async fn converse(mut stream: TcpStream, inner: &Inner) {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            match stream.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        buffer.drain(..end);
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        inner.asked.lock().push(Asked { at: Instant::now(), path: path.clone(), head });
        let answer = match inner.script(&path) {
            Script::Answer(status, headers, body) => answer(status, &headers, &body),
            Script::Late(wait, body) => {
                // sleep: the upstream is slow, which is what the test is about
                tokio::time::sleep(wait).await;
                answer(200, &[], &body)
            }
            Script::Hangup => return,
            Script::Silence => {
                // Until the peer goes away.
                let _ = stream.read(&mut [0; 1]).await;
                return;
            }
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn answer(status: u16, headers: &[(&'static str, String)], body: &str) -> String {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status} Scripted\r\ncontent-length: {}\r\n{more}\r\n{body}", body.len())
}

//! A deliberately plain reader of event streams: it shows frames as they come, with the moment they came.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::Value;

/// One frame, or one comment.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The text of the frame without its blank line.
    pub raw: String,
    /// When its last byte came.
    pub at: Instant,
    /// Its type; empty for a comment.
    pub event: String,
    /// Its id.
    pub id: Option<String>,
    /// Its data, null when it is not JSON.
    pub data: Value,
}

/// A stream.
pub struct Frames {
    response: reqwest::Response,
    buffer: String,
    ready: VecDeque<Frame>,
}

impl Frames {
    /// Opens one with GET; `target` begins after the host.
    pub async fn open(base: &str, target: &str, headers: &[(&str, &str)]) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let http = reqwest::Client::builder().http1_only().build().unwrap();
        let mut request = http.get(format!("{base}{target}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        Self { response, buffer: String::new(), ready: VecDeque::new() }
    }

    /// The answer's status.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// A header of the answer.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// The next frame or comment; none at the end of the stream. Fails when none comes in time.
    #[track_caller]
    pub fn next(&mut self, deadline: Duration) -> impl Future<Output = Option<Frame>> {
        let caller = std::panic::Location::caller();
        async move {
            let found = tokio::time::timeout(deadline, self.read()).await;
            found.unwrap_or_else(|_| panic!("{caller}: no frame within {deadline:?}"))
        }
    }

    /// The next frame of a type, others skipped.
    pub async fn next_of(&mut self, event: &str, deadline: Duration) -> Frame {
        let end = Instant::now() + deadline;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let frame = self.next(left).await.unwrap_or_else(|| panic!("the stream ended before {event}"));
            if frame.event == event {
                return frame;
            }
        }
    }

    /// Everything up to and with the next frame of a type; comments are left out.
    pub async fn until(&mut self, event: &str, deadline: Duration) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            let frame =
                self.next(deadline).await.unwrap_or_else(|| panic!("the stream ended before {event}"));
            if frame.event.is_empty() {
                continue;
            }
            let last = frame.event == event;
            frames.push(frame);
            if last {
                return frames;
            }
        }
    }

    async fn read(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            let chunk = self.response.chunk().await.ok()??;
            self.buffer.push_str(&String::from_utf8_lossy(&chunk));
            while let Some(end) = self.buffer.find("\n\n") {
                let raw = self.buffer[..end].to_owned();
                self.buffer.drain(..end + 2);
                self.ready.push_back(parse(raw));
            }
        }
    }
}

fn parse(raw: String) -> Frame {
    let field = |name: &str| {
        raw.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
    };
    let event = field("event").unwrap_or_default();
    let data = field("data").and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null);
    Frame { at: Instant::now(), event, id: field("id"), data, raw }
}

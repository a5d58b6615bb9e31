//! Endpoints without sockets, so that the runtime's clock can stand still and jump.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config::transport::{Broken, Call, Link, Reply};
use crate::config::{Client, Config};

/// What an endpoint does with a request.
pub enum FakePlay {
    /// Nobody listens.
    Dead,
    /// It takes the request and says nothing.
    Hang,
    /// An answer.
    Reply(u16, &'static [(&'static str, &'static str)], String),
    /// A stream whose bytes the test sends.
    Stream(&'static [(&'static str, &'static str)], mpsc::Receiver<String>),
}

type Play = Box<dyn FnMut(&Call) -> FakePlay + Send>;

/// One endpoint.
pub struct Fake {
    play: Mutex<Play>,
    calls: Mutex<Vec<(Duration, Call)>>,
    began: Instant,
}

struct Way(Arc<Fake>);

fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
    list.iter().map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v))).collect()
}

impl Link for Way {
    fn send(&self, call: Call) -> BoxFuture<'static, Result<Reply, Broken>> {
        let play = (self.0.play.lock())(&call);
        self.0.calls.lock().push((self.0.began.elapsed(), call));
        Box::pin(async move {
            match play {
                FakePlay::Dead => Err(Broken("connection refused".into())),
                FakePlay::Hang => std::future::pending().await,
                FakePlay::Reply(status, list, body) => {
                    let body = stream::iter([Ok(Bytes::from(body))]).boxed();
                    Ok(Reply { status, headers: headers(list), body })
                }
                FakePlay::Stream(list, receiver) => {
                    let mut headers = headers(list);
                    headers.insert("content-type", HeaderValue::from_static("text/event-stream"));
                    let body = stream::unfold(receiver, |mut receiver| async move {
                        let bytes = receiver.recv().await?;
                        Some((Ok(Bytes::from(bytes)), receiver))
                    });
                    Ok(Reply { status: 200, headers, body: body.boxed() })
                }
            }
        })
    }
}

/// Some endpoints and a client of them.
pub struct World {
    pub fakes: Vec<Arc<Fake>>,
    pub client: Client,
}

impl World {
    /// So many endpoints, all dead, called `e0`, `e1` and so on.
    pub fn new(count: usize) -> Self {
        let dead = || {
            let play: Play = Box::new(|_| FakePlay::Dead);
            Arc::new(Fake { play: Mutex::new(play), calls: Mutex::default(), began: Instant::now() })
        };
        let fakes: Vec<_> = (0..count).map(|_| dead()).collect();
        let link = |(n, fake): (usize, &Arc<Fake>)| -> (Arc<str>, Box<dyn Link>) {
            (format!("e{n}").into(), Box::new(Way(Arc::clone(fake))))
        };
        let client = Client::over(fakes.iter().enumerate().map(link).collect(), &Config::default());
        Self { fakes, client }
    }

    /// From now on the endpoint does this.
    pub fn play(&self, endpoint: usize, play: impl FnMut(&Call) -> FakePlay + Send + 'static) {
        *self.fakes[endpoint].play.lock() = Box::new(play);
    }

    /// From now on the endpoint answers so.
    pub fn says(&self, endpoint: usize, status: u16, body: &str) {
        let body = body.to_owned();
        self.play(endpoint, move |_| FakePlay::Reply(status, &[], body.clone()));
    }

    /// The endpoint gives one stream, whose bytes the sender sends, and is dead after it.
    pub fn streams(&self, endpoint: usize) -> mpsc::Sender<String> {
        self.streams_with(endpoint, &[])
    }

    /// The same with headers.
    pub fn streams_with(
        &self,
        endpoint: usize,
        headers: &'static [(&'static str, &'static str)],
    ) -> mpsc::Sender<String> {
        let (send, receive) = mpsc::channel(64);
        let mut receive = Some(receive);
        self.play(endpoint, move |_| match receive.take() {
            Some(receive) => FakePlay::Stream(headers, receive),
            None => FakePlay::Dead,
        });
        send
    }

    /// How many requests an endpoint got.
    pub fn count(&self, endpoint: usize) -> usize {
        self.fakes[endpoint].calls.lock().len()
    }

    /// The requests that an endpoint got.
    pub fn calls(&self, endpoint: usize) -> Vec<Call> {
        self.fakes[endpoint].calls.lock().iter().map(|(_, call)| call.clone()).collect()
    }

    /// When each endpoint was asked, in milliseconds, in order of time.
    pub fn times(&self) -> Vec<(u64, usize)> {
        let of = |(n, fake): (usize, &Arc<Fake>)| {
            let calls = fake.calls.lock();
            calls.iter().map(|(at, _)| (u64::try_from(at.as_millis()).unwrap(), n)).collect::<Vec<_>>()
        };
        let mut times: Vec<_> = self.fakes.iter().enumerate().flat_map(of).collect();
        times.sort_by_key(|(at, _)| *at);
        times
    }
}

/// A date so many seconds from now.
pub fn dated(seconds: i64) -> String {
    let now = crate::config::marks::wall().as_micros();
    jiff::Timestamp::from_microsecond(now + seconds * 1_000_000).unwrap().to_string()
}

/// A value object; `text` is not encoded further, so it is base64.
pub fn update(name: &str, base64: &str, date: &str) -> String {
    format!(r#"{{"name":"{name}","bytes":"{base64}","metadata":{{}},"resolved_at":"{date}"}}"#)
}

/// The entry of a name in error.
pub fn entry_error(name: &str, kind: &str) -> String {
    format!(r#"{{"name":"{name}","metadata":{{}},"error":{{"kind":"{kind}","message":"{kind}!"}}}}"#)
}

/// An envelope.
pub fn envelope(kind: &str) -> String {
    format!(r#"{{"error":{{"kind":"{kind}","message":"{kind}!"}}}}"#)
}

/// A frame of a stream.
pub fn frame(event: &str, data: &str) -> String {
    format!("event: {event}\ndata: {data}\n\n")
}

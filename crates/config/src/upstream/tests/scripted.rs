//! A scripted HTTP server for the tests of providers: it notes what it is asked and gives what was pushed.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;

/// What was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Method and path with query.
    pub line: String,
    headers: http::HeaderMap,
    /// The body.
    pub body: String,
}

impl Asked {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|text| text.to_str().unwrap())
    }
}

/// What is answered.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    hang: bool,
}

impl Answer {
    /// A status with a body.
    pub fn of(status: u16, body: &str) -> Self {
        Self { status, headers: Vec::new(), body: body.to_owned(), hang: false }
    }

    /// None, ever.
    pub fn never() -> Self {
        Self { hang: true, ..Self::of(500, "") }
    }

    /// With a header.
    pub fn header(mut self, name: &str, text: &str) -> Self {
        self.headers.push((name.to_owned(), text.to_owned()));
        self
    }
}

/// The server. A route's answers are given in order and the last one for ever; then come the pushed ones, each once.
pub struct Script {
    addr: SocketAddr,
    routes: Mutex<BTreeMap<String, VecDeque<Answer>>>,
    answers: Mutex<VecDeque<Answer>>,
    asked: Mutex<Vec<Asked>>,
}

impl Script {
    /// Begins to listen on a free port.
    pub async fn start() -> Arc<Self> {
        crypto();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let script = Arc::new(Self {
            addr,
            routes: Mutex::default(),
            answers: Mutex::default(),
            asked: Mutex::default(),
        });
        tokio::spawn(Arc::clone(&script).accept(listener));
        script
    }

    /// `http://host:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// What the next request without a route is answered.
    pub fn push(&self, answer: Answer) {
        self.answers.lock().push_back(answer);
    }

    /// What a line such as `GET /v1/x` is answered.
    pub fn route(&self, line: &str, answers: impl IntoIterator<Item = Answer>) {
        self.routes.lock().insert(line.to_owned(), answers.into_iter().collect());
    }

    /// Everything asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    /// The lines asked since the last time this was called.
    pub fn lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock()).into_iter().map(|asked| asked.line).collect()
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let script = Arc::clone(&self);
            let service = service_fn(move |request| Arc::clone(&script).serve(request));
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(async move { http.serve_connection(TokioIo::new(stream), service).await });
        }
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let line = format!("{} {}", request.method(), request.uri());
        let headers = request.headers().clone();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        self.asked.lock().push(Asked { line: line.clone(), headers, body });
        let answer = self.next(&line);
        if answer.hang {
            std::future::pending::<()>().await;
        }
        let mut response = Response::builder().status(answer.status);
        for (name, text) in answer.headers {
            response = response.header(name, text);
        }
        Ok(response.body(Full::from(answer.body)).unwrap())
    }

    fn next(&self, line: &str) -> Answer {
        if let Some(answers) = self.routes.lock().get_mut(line) {
            let last = answers.len() == 1;
            return if last { answers[0].clone() } else { answers.pop_front().unwrap() };
        }
        self.answers.lock().pop_front().unwrap_or_else(|| Answer::of(599, "nothing was scripted"))
    }
}

/// Installs the crypto library, as `main` does.
pub fn crypto() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Writes a file for the owner only.
pub fn secret(path: &Path, text: &str) {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

//! `https:`: documents below an upstream's base URL.
//!
//! What must hold: no path leaves the base; no redirect leaves the origin; an unchanged document costs no body.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use async_trait::async_trait;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use reqwest::{Response, Url, redirect};

use super::http_answer::{self, USER_AGENT};
use super::{BuildError, content, credential};
use crate::config::UpstreamSettings;
use crate::provider::{Fetched, Provider};
use crate::reference::ObjectKey;
use crate::value::{Secret, Value};

/// Redirects within the origin that are followed.
const MAX_REDIRECTS: usize = 5;

/// One HTTP server.
pub struct Https {
    http: reqwest::Client,
    base: Url,
    headers: HeaderMap,
    bearer_file: Option<PathBuf>,
    basic_file: Option<PathBuf>,
    sensitive: bool,
    validators: Mutex<BTreeMap<ObjectKey, Validators>>,
}

/// What makes a request conditional, and the version of the value that it belongs to.
#[derive(Clone)]
struct Validators {
    version: Option<String>,
    etag: Option<HeaderValue>,
    last_modified: Option<HeaderValue>,
}

impl Https {
    /// From `[upstream.NAME]`.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub fn new(name: &str, settings: &UpstreamSettings) -> Result<Self, BuildError> {
        let wrong = |key, problem: &str| BuildError::setting(name, key, problem);
        let base = settings.base_url.as_deref().ok_or_else(|| wrong("base_url", "is missing"))?;
        let base = Url::parse(base).map_err(|_| wrong("base_url", "is not a URL"))?;
        if base.scheme() != "https" && (base.scheme() != "http" || !may_be_plain(&base, settings)) {
            return Err(wrong("base_url", "needs https (or allow_insecure = true)"));
        }
        let http = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .redirect(redirect::Policy::custom(within_origin))
            .build()
            .map_err(|_| wrong("base_url", "TLS cannot be set up"))?;
        let headers = settings.headers.iter().map(|(key, text)| {
            let key = HeaderName::try_from(key.as_str());
            let text = HeaderValue::try_from(text.as_str()).map(|mut text| {
                text.set_sensitive(true);
                text
            });
            key.ok().zip(text.ok()).ok_or_else(|| wrong("headers", "holds what is no header"))
        });
        Ok(Self {
            http,
            base,
            headers: headers.collect::<Result<_, _>>()?,
            bearer_file: settings.bearer_file.clone(),
            basic_file: settings.basic_file.clone(),
            sensitive: settings.sensitive,
            validators: Mutex::default(),
        })
    }

    /// The URL of an object; none when its path would leave the base.
    fn url(&self, object: &ObjectKey) -> Option<Url> {
        let path = object.path.trim_start_matches('/');
        let decoded = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
        if decoded.split(['/', '\\']).any(|segment| segment == "..") || decoded.contains('\0') {
            return None;
        }
        let mut url = self.base.clone();
        let joined = format!("{}/{path}", self.base.path().trim_end_matches('/'));
        url.set_path(&joined);
        let options = object.options.iter().filter(|(key, _)| !matches!(key.as_str(), "via" | "optional"));
        for (key, text) in options {
            url.query_pairs_mut().append_pair(key, text);
        }
        Some(url)
    }

    async fn get(&self, object: &ObjectKey, held: Option<&Value>) -> Result<Outcome<Value>, Failure> {
        let url = self.url(object).ok_or(Failure::of(AnswerKind::Invalid))?;
        let mut request = self.http.get(url).headers(self.headers.clone());
        if let Some(file) = &self.bearer_file {
            request = request.bearer_auth(credential::text(file)?.as_str());
        }
        if let Some(file) = &self.basic_file {
            let text = credential::text(file)?;
            let (user, password) = text.split_once(':').ok_or(Failure::own_login())?;
            request = request.basic_auth(user, Some(password));
        }
        let known = held.and_then(|held| {
            let known = self.validators.lock().get(object).cloned();
            known.filter(|known| known.version == held.version)
        });
        for (name, text) in known.iter().flat_map(Validators::conditions) {
            request = request.header(name, text);
        }
        let response = request.send().await.map_err(|error| broken(&error))?;
        let conditional = held.filter(|_| known.is_some());
        self.answer(object, conditional, response).await
    }

    async fn answer(
        &self,
        object: &ObjectKey,
        held: Option<&Value>,
        response: Response,
    ) -> Result<Outcome<Value>, Failure> {
        if response.status() == StatusCode::NOT_MODIFIED {
            let same = held.cloned().ok_or(Failure::of(AnswerKind::Unknown))?;
            return Ok(Outcome::Value { value: same, passed: None });
        }
        if response.status() == StatusCode::GONE {
            return Ok(Outcome::Absent);
        }
        if let Some(outcome) = http_answer::meaning(response.status(), response.headers()) {
            return Ok(outcome);
        }
        let copy = |name| response.headers().get(name).cloned();
        let (etag, last_modified) = (copy(header::ETAG), copy(header::LAST_MODIFIED));
        let mut bytes = http_answer::body(response).await.map_err(Failure::of)?;
        let version = etag.as_ref().and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        let version = version.unwrap_or_else(|| content::version(&bytes));
        let value = Value {
            bytes: Secret::new(std::mem::take(&mut *bytes)),
            version: Some(version),
            sensitive: self.sensitive,
            ..Value::default()
        };
        let validators = Validators { version: value.version.clone(), etag, last_modified };
        self.validators.lock().insert(object.clone(), validators);
        Ok(Outcome::Value { value, passed: None })
    }
}

impl Validators {
    fn conditions(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let etag = self.etag.clone().map(|etag| (header::IF_NONE_MATCH, etag));
        etag.into_iter().chain(self.last_modified.clone().map(|date| (header::IF_MODIFIED_SINCE, date)))
    }
}

#[async_trait]
impl Provider for Https {
    async fn fetch(&self, object: &ObjectKey, held: Option<&Value>) -> Fetched {
        self.get(object, held).await.unwrap_or_else(Outcome::Error).into()
    }
}

fn may_be_plain(base: &Url, settings: &UpstreamSettings) -> bool {
    let host = base.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let loopback = host.parse::<IpAddr>().map_or(host == "localhost", |ip| ip.is_loopback());
    loopback || settings.allow_insecure
}

fn within_origin(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let first = attempt.previous().first().map(Url::origin);
    if first.is_none_or(|first| first != attempt.url().origin()) {
        return attempt.error("a redirect to another origin");
    }
    match attempt.previous().len() > MAX_REDIRECTS {
        true => attempt.error("too many redirects"),
        false => attempt.follow(),
    }
}

/// No answer came, or none that may be followed; the text of the error would hold the URL.
fn broken(error: &reqwest::Error) -> Failure {
    tracing::debug!(
        connect = error.is_connect(),
        redirect = error.is_redirect(),
        timeout = error.is_timeout(),
        "no answer from an HTTP upstream"
    );
    Failure::of(AnswerKind::Unavailable)
}

#[cfg(test)]
mod tests;

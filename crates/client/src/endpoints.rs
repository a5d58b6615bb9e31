//! Which endpoint is tried next.

use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Url;

use crate::error::ClientError;

/// A list of endpoints, of which one is preferred: the one that answered last.
#[derive(Debug)]
pub struct Endpoints {
    urls: Vec<Url>,
    preferred: AtomicUsize,
}

impl Endpoints {
    /// Parses addresses; one text may hold several, separated by commas.
    pub fn parse(addresses: &[String]) -> Result<Self, ClientError> {
        let urls = addresses
            .iter()
            .flat_map(|list| list.split(','))
            .map(str::trim)
            .filter(|address| !address.is_empty())
            .map(parse_url)
            .collect::<Result<Vec<_>, _>>()?;
        if urls.is_empty() {
            return Err(ClientError::Address { address: String::new() });
        }
        Ok(Self { urls, preferred: AtomicUsize::new(0) })
    }

    /// Every endpoint once, the preferred one first.
    pub fn rotation(&self) -> impl Iterator<Item = (usize, &Url)> {
        let start = self.preferred.load(Ordering::Relaxed);
        let count = self.urls.len();
        (0..count).filter_map(move |i| {
            let index = (start + i) % count;
            self.urls.get(index).map(|url| (index, url))
        })
    }

    /// Remembers the endpoint that answered.
    pub fn prefer(&self, index: usize) {
        self.preferred.store(index, Ordering::Relaxed);
    }
}

fn parse_url(address: &str) -> Result<Url, ClientError> {
    let bad = || ClientError::Address { address: address.to_owned() };
    let mut url = Url::parse(address).map_err(|_| bad())?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(bad());
    }
    url.set_path("");
    url.set_query(None);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(endpoints: &Endpoints) -> Vec<u16> {
        endpoints.rotation().map(|(_, url)| url.port().unwrap()).collect()
    }

    #[test]
    fn the_endpoint_that_answered_comes_first() {
        let endpoints = Endpoints::parse(&["http://a:1,http://b:2/x".into(), "http://c:3".into()]).unwrap();
        assert_eq!(order(&endpoints), [1, 2, 3]);
        endpoints.prefer(1);
        assert_eq!(order(&endpoints), [2, 3, 1]);
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for bad in ["", "127.0.0.1:8200", "ftp://x", "http://"] {
            assert!(Endpoints::parse(&[bad.into()]).is_err(), "{bad}");
        }
    }
}

//! What a person may do about a failure, told below it.

use holdfast_client::ClientError;

/// For a request that was refused and carried no token.
pub const NO_TOKEN: &str = "There is no token: set HOLDFAST_TOKEN or run `holdfast login`.";

/// What to do about an error, where it is known.
pub fn of(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::Unreachable { tried } => Some(unreachable(&tried.join("\n"))),
        ClientError::OutcomeUnknown { source, .. } => speaks_tls(&holdfast_client::http::chain(&**source)),
        ClientError::Answer { .. } => {
            Some("Is that the address of a Holdfast API? Set HOLDFAST_ADDR or --address.")
        }
        ClientError::Status { status, errors, .. } => refused(*status, &errors.join("\n")),
        _ => None,
    }
}

fn unreachable(tried: &str) -> &'static str {
    if tried.contains("UnknownIssuer") {
        return "The authority of the node's certificate is not known here: name its file with HOLDFAST_CACERT or --ca-cert.";
    }
    if tried.contains("InvalidContentType") || tried.contains("InvalidMessage") {
        return "The port does not speak TLS: is it http:// instead of https://?";
    }
    speaks_tls(tried).unwrap_or("Is the address right? Set HOLDFAST_ADDR or --address.")
}

fn speaks_tls(text: &str) -> Option<&'static str> {
    let garbled = text.contains("invalid HTTP version") || text.contains("HTTP/0.9");
    garbled.then_some("The port does not speak plain HTTP: is it https:// instead of http://?")
}

fn refused(status: u16, text: &str) -> Option<&'static str> {
    match status {
        403 => Some("The token has ended, or its policies do not allow this. See `holdfast token lookup`."),
        404 if text.is_empty() => Some("Nothing is there."),
        404 if text.contains("route entry not found") => {
            Some("Nothing is mounted there: `holdfast secrets list` and `holdfast auth list` show what is.")
        }
        400 if text.contains("snapshot-force") => {
            Some("With -force it is restored all the same, and replaces everything in this cluster.")
        }
        503 if text.contains("sealed") => Some("Unseal the node with `holdfast operator unseal`."),
        503 if text.contains("removed from the cluster") => Some(
            "To let it join again with nothing on its disk: `holdfast operator raft rejoin LEADER_URL -yes`, sent to this node.",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_has_its_word() {
        let status = |status, text: &str| {
            let errors = if text.is_empty() { vec![] } else { vec![text.to_owned()] };
            of(&ClientError::Status { method: "GET".into(), path: "x".into(), status, errors, body: None })
        };
        let unreachable = |text: &str| of(&ClientError::Unreachable { tried: vec![text.to_owned()] });
        for (hint, word) in [
            (status(404, ""), "Nothing is there"),
            (status(404, "no handler for route \"x\". route entry not found."), "secrets list"),
            (status(503, "node was removed from the cluster"), "raft rejoin"),
            (status(503, "Vault is sealed"), "operator unseal"),
            (status(400, "the backup is of cluster x; use snapshot-force"), "-force"),
            (unreachable("https://h: invalid peer certificate: UnknownIssuer"), "HOLDFAST_CACERT"),
            (unreachable("https://h: received corrupt message of type InvalidContentType"), "http://"),
            (unreachable("http://h: invalid HTTP version parsed"), "https://"),
            (unreachable("http://h: connection refused"), "HOLDFAST_ADDR"),
        ] {
            assert!(hint.is_some_and(|hint| hint.contains(word)), "{word}: {hint:?}");
        }
        assert_eq!(status(400, "field is missing"), None);
    }
}

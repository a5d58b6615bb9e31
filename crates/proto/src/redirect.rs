//! The refusal that names another address to dial: code and detail together, so that neither alone is taken for one.

use prost::Message as _;
use tonic::{Code, Status};

use crate::relay::v1::RelayRedirect;

/// The refusal of a node that takes no spokes: dial `endpoint` (`host:port`) instead.
pub fn redirect(endpoint: impl Into<String>) -> Status {
    let detail = RelayRedirect { relay_endpoint: endpoint.into() };
    let text = "this node takes no spoke streams; dial the active node";
    Status::with_details(Code::FailedPrecondition, text, detail.encode_to_vec().into())
}

/// The address that a refusal names, if it is a redirect.
pub fn redirect_of(status: &Status) -> Option<String> {
    if status.code() != Code::FailedPrecondition || status.details().is_empty() {
        return None;
    }
    let detail = RelayRedirect::decode(status.details()).ok()?;
    Some(detail.relay_endpoint).filter(|endpoint| !endpoint.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_and_detail_together_make_a_redirect() {
        let status = redirect("hub-1:50053");
        assert_eq!(redirect_of(&status).as_deref(), Some("hub-1:50053"));
        let detail = status.details().to_vec();
        assert_eq!(redirect_of(&Status::with_details(Code::Unavailable, "x", detail.into())), None);
        assert_eq!(redirect_of(&Status::failed_precondition("x")), None);
        assert_eq!(
            redirect_of(&Status::with_details(Code::FailedPrecondition, "x", vec![8, 9].into())),
            None
        );
        assert_eq!(redirect_of(&redirect("")), None);
    }
}

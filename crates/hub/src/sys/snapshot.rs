//! `sys/storage/raft/snapshot` and `snapshot-force`: backups of the whole cluster.

use crate::backup;
use crate::error::ApiError;
use crate::logical::{Body, Cx, Operation, Request, Response};

/// Whether the path is one of a backup.
pub(super) fn serves(rest: &str) -> bool {
    matches!(rest, "snapshot" | "snapshot-force")
}

pub(super) async fn handle(cx: &Cx, rest: &str, request: &Request) -> Result<Response, ApiError> {
    match (rest, request.operation) {
        ("snapshot", Operation::Read) => {
            let file = backup::save(&cx.hub).await?;
            let body = Body::File { content_type: backup::CONTENT_TYPE, file };
            Ok(Response { status: None, body })
        }
        (_, Operation::Write) => {
            let upload = request.upload.as_ref().ok_or_else(|| ApiError::invalid("the backup is missing"))?;
            let archive = upload.try_clone().map_err(ApiError::internal)?;
            backup::restore(&cx.hub, archive, rest == "snapshot-force").await?;
            Ok(Response::no_content())
        }
        _ => Err(ApiError::unsupported_operation()),
    }
}

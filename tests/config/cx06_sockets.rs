//! CX-06: one socket path and two processes.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};

use holdfast_tests::config::{Replica, TOKEN};
use holdfast_tests::eventually;
use holdfast_tests::hub::PATIENCE;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn read(path: &std::path::Path) -> Option<String> {
    let mut stream = tokio::net::UnixStream::connect(path).await.ok()?;
    let request = format!(
        "GET /v1/values/a HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    Some(text)
}

fn lines(socket: &std::path::Path, more: &str, value: &str) -> String {
    format!(
        "[[listener]]\nkind = \"unix\"\npath = {socket:?}\n{more}\n[[listener]]\nkind = \"tcp\"\naddr = \"127.0.0.1:PORT\"\n\
         [bindings]\na = \"static:{value}\"\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_reclaimed_and_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("config.sock");
    let mut first = Replica::start(&lines(&socket, "", "one")).await;
    assert!(read(&socket).await.unwrap().contains("\"bytes\":\"b25l\""));
    let meta = std::fs::metadata(&socket).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    let mut second = Replica::prepare(&lines(&socket, "", "two"));
    second.run();
    let status = second.process().wait(PATIENCE);
    assert!(!status.success());
    let text = format!("socket {} is served by another process", socket.display());
    assert!(second.log().contains(&text), "{}", second.log());
    assert!(read(&socket).await.unwrap().contains("\"bytes\":\"b25l\""), "the first goes on");
    first.kill();
    assert!(socket.exists(), "a dead socket file stays behind");
    second.run();
    second.wait_ready().await;
    assert!(read(&socket).await.unwrap().contains("\"bytes\":\"dHdv\""), "a dead socket is reclaimed");
    let third = Replica::start(&lines(&socket, "takeover = true", "three")).await;
    assert!(read(&socket).await.unwrap().contains("\"bytes\":\"dGhyZWU=\""), "taken over");
    let inode = std::fs::metadata(&socket).unwrap().ino();
    second.terminate();
    assert_eq!(second.process().wait(PATIENCE).code(), Some(0));
    assert_eq!(std::fs::metadata(&socket).unwrap().ino(), inode, "the loser leaves the new socket alone");
    assert!(read(&socket).await.unwrap().contains("\"bytes\":\"dGhyZWU=\""));
    let mut third = third;
    third.terminate();
    third.process().wait(PATIENCE);
    eventually(PATIENCE, "its own socket is removed", || (!socket.exists()).then_some(()));
}

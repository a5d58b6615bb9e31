//! The drivers against real servers: a private PostgreSQL and a private MariaDB.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods
)]

mod support;

mod mysql;
mod mysql_tls;
mod postgres;
mod postgres_failures;
mod postgres_tls;

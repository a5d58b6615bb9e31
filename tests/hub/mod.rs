//! The hub, part A: real processes, real databases, real clients.

mod h01_clients;
mod h03_health;
mod h04_envelope;
mod h05_shamir;
mod h06_keyfile;
mod h12_database;
mod h50_failover;
mod h52_partition;
mod h70_secrets;

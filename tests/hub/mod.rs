//! The hub, part A: real processes, real databases, real clients.

mod cli;
mod h01_clients;
mod h03_health;
mod h04_envelope;
mod h05_shamir;
mod h06_keyfile;
mod h07_policies;
mod h08_tokens;
mod h09_logins;
mod h10_kv;
mod h11_wrapping;
mod h12_database;
mod h13_names;
mod h14_rotation;
mod h15_statements;
mod h16_leases;
mod h17_audit;
mod h18_quotas;
mod h19_backup;
mod h20_members;
mod h50_failover;
mod h52_partition;
mod h70_secrets;

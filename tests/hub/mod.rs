//! The hub, part A: real processes, real databases, real clients.

mod h03_health;
mod h04_envelope;
mod h05_shamir;
mod h06_keyfile;

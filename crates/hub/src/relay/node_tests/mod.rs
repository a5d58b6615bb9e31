//! Nodes with real sockets, TLS and gRPC on loopback, over one store, with leadership moved by hand.

mod commands;
mod fuzz;
mod ownership;
mod renewals;
mod spoke;
mod streams;
mod world;

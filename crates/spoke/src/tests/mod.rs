//! The spoke against drivers and hubs that the tests hold in their hands.

mod cache;
mod commands;
mod dialling;
pub(crate) mod fake;
mod going_down;
mod hostile;
mod hub;
mod renewing;
mod runner;

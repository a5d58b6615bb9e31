//! The engine over a scripted provider, in virtual time.

mod leases;
mod outcomes;
mod pacing;
mod reloads;
mod rig;
mod watches;
mod world;

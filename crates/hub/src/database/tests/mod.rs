//! The engine over a store and a database that fail at every step.

mod intents;
mod issuing;
mod leases;
mod queues;
mod real;
mod roles;
mod rotating;
mod scale;
mod takeover;
mod warmth;
mod world;

//! The engine over a store and a database that fail at every step.

mod issuing;
mod leases;
mod real;
mod rotating;
mod scale;
mod world;

//! A fleet of replicas and its clients in a fake world; compiled for tests only.

mod tests;

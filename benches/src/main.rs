//! The benchmark programs behind `./dev bench`.

fn main() {}

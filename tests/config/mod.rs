//! The config server: real processes, scripted and real upstreams, raw and real clients.

mod cf01_probes;
mod cf02_clients;
mod cf03_upstream;
mod cf04_settled;
mod cf05_fields;
mod cf06_dates;
mod cf08_balanced;
mod cf09_resume;
mod cf14_audit;
mod cf17_manifests;
mod cf18_reload;
mod cs01_answers;
mod cs03_denied;
mod cx01_killed;
mod cx03_drain;
mod cx05_hung;
mod cx06_sockets;
mod cx07_restart;
mod cx12_clock;

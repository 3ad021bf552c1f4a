//! What the end-to-end tests stand on: a real cluster, a real HTTP receiver, and waiting without sleeping.

pub mod alerts;
pub mod cluster;
pub mod copies;
pub mod database;
pub mod dead_letters;
pub mod directory;
pub mod engine;
pub mod guarded;
pub mod log;
pub mod operated;
pub mod own_scripts;
pub mod pgbouncer;
pub mod port;
pub mod process;
pub mod random;
pub mod raw_receiver;
pub mod receiver;
pub mod reference;
pub mod relay;
pub mod released;
pub mod scripted;
pub mod story;
pub mod tcp_proxy;
pub mod template;
pub mod verifier;
pub mod wait;
pub mod watch;
pub mod worker;

pub use cluster::Cluster;
pub use database::Database;
pub use guarded::Guarded;
pub use pgbouncer::PgBouncer;
pub use raw_receiver::RawReceiver;
pub use receiver::{Answer, Receiver, Request};
pub use relay::Relay;
pub use tcp_proxy::TcpProxy;

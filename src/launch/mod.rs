//! Starting a server, owning it, and stopping it with nothing left behind.
//!
//! [`start`] writes the plan down, then starts a supervisor (`orch supervise`) in a session of its own. The supervisor
//! takes over the leases, starts the server in *another* session, since an engine may kill its whole process group, and
//! from then on records what descends from it, how it ends, and whether its run still lives. Everything it knows is in
//! files under `servers/<id>/`, so that any later `orch` can list and stop what an earlier one left.
//!
//! A process is ours by its marks and never by its name: see `marks.rs`.

pub(crate) mod command;
pub mod docker;
mod dying;
mod end;
mod enter;
mod error;
pub mod gpu;
mod holdings;
mod hostwide;
mod lease;
mod leftovers;
mod list;
pub mod managed;
mod marks;
mod port;
mod process;
pub mod running;
mod runs;
mod server;
mod servers;
mod start;
mod stop;
mod supervise;
pub mod systemd;
mod take_over;
mod telemetry;
mod watched;
mod work;

pub use enter::enter;
pub use error::LaunchError;
pub use holdings::{Holding, holdings, our_processes, port_holder, process_name};
pub use lease::{AUTO_PORTS, Held, Lease, choose_port, reserve_gpus, reserve_port};
pub use list::{Listed, State, list};
pub use port::PortOwner;
pub(crate) use port::listening;
pub use process::{BootMoment, Process, Seen, began, own_line, processes};
pub use server::{Exited, Hurry, Server};
pub use start::{Start, start};
pub use stop::{Stopped, Which, stop};
pub use supervise::{detach, leave_terminal, spare_from_terminals, supervise};
pub use take_over::{TakenOver, adopt, attach};
pub use watched::Watched;
pub use work::{MEASURE_SCOPE, WORK, WorkFolder};

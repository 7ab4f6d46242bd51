//! Settings tried in all combinations: the plan of a sweep, the journal of what was done of it, what follows next, and
//! what the points tell together. Pure but for its folder; how a point is measured is not known here.

mod effects;
mod folder;
mod goal;
mod journal;
mod next;
mod plan;
mod resolve;
mod rows;
pub mod tune;

pub use effects::{Effect, effects};
pub use folder::{Lock, SweepError, SweepFolder};
pub use goal::{Interval, could_win, interval, meets};
pub use journal::{Attempt, Failed, Line, State, SweepEvent};
pub use next::{Left, Next, budget_allows, left_out, next};
pub use plan::{Plan, PlanError, Point, combinations};
pub use resolve::{Ids, Variant, id_of};
pub use rows::{Row, best, front, rows};

//! When requests are sent, as it was typed.

use super::super::{Exit, Failure};
use super::flags::ArrivalArg;
use crate::profile::search_text;
use crate::render::{Arrival, Search, SearchOf};

/// What was typed of it.
pub(super) struct Way {
    pub(super) concurrency: Option<u32>,
    pub(super) rate: Option<f64>,
    pub(super) search: Option<String>,
    pub(super) arrival: Option<ArrivalArg>,
    pub(super) burstiness: Option<f64>,
}

impl Way {
    pub(super) fn arrival(self) -> Result<Arrival, Failure> {
        let Way { concurrency, rate, search, arrival, burstiness } = self;
        let shape = match arrival.unwrap_or(ArrivalArg::Poisson) {
            ArrivalArg::Poisson => "poisson",
            ArrivalArg::Constant => "constant",
            ArrivalArg::Gamma => "gamma",
        };
        if let Some(text) = search {
            let keys = search_text("--search", &text).map_err(|error| Failure::new(Exit::Usage, error))?;
            if keys.rate.is_none() && arrival.is_some() {
                let report = miette::miette!(
                    code = "orch::bench::arrival",
                    help = "search a `rate`, or leave `--arrival` out",
                    "`--arrival` spreads the gaps of a rate, and the search is for a concurrency"
                );
                return Err(Failure::new(Exit::Usage, report));
            }
            // Its checks have seen to it that there is something to raise.
            let search = Search::of(&keys, shape, burstiness);
            let none = || Failure::new(Exit::Own, miette::miette!("the search raises nothing"));
            return search.map(Arrival::Search).ok_or_else(none);
        }
        // clap has seen to it that there is one of the two.
        let closed = Arrival::Closed { concurrency: concurrency.unwrap_or(1) };
        Ok(rate.map_or(closed, |rate| Arrival::Open { rate, shape: shape.to_owned(), burstiness }))
    }
}

/// Requests in flight at most, as far as that is known before.
pub(super) fn most_at_once(arrival: &Arrival) -> u32 {
    match arrival {
        Arrival::Closed { concurrency } => *concurrency,
        Arrival::Search(Search { of: SearchOf::Concurrency, to, .. }) => *to as u32,
        _ => 0,
    }
}

/// What a search raises, as profiles call it.
pub(super) fn word_of(of: SearchOf) -> &'static str {
    match of {
        SearchOf::Concurrency => "concurrency",
        SearchOf::Rate => "rate",
    }
}

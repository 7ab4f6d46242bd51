//! What the verbs that read records share.

use super::{Exit, Failure};
use crate::record::StoreError;

/// Ends a verb for what is wrong with the results folder.
pub(crate) fn failure(error: StoreError) -> Failure {
    let exit = if error.is_usage() { Exit::Usage } else { Exit::Own };
    Failure::new(exit, error)
}

//! What a spoke did for a request, for the request's entry in the audit log.
//!
//! A request's commands run in its own task, below engines and drivers that know nothing of spokes: what is noted
//! travels with the task. Work that no request waits for is noted by nobody.

use std::cell::RefCell;
use std::time::Duration;

use holdfast_core::SpokeName;
use holdfast_core::ownership::NodeName;

use super::metrics::Route;

tokio::task_local! {
    static NOTED: RefCell<Option<Work>>;
}

/// The commands of one request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Work {
    /// Whose the last of them was.
    pub spoke: SpokeName,
    /// The node that held the spoke's stream.
    pub node: NodeName,
    /// How the command came there.
    pub route: Route,
    /// How long all of them took.
    pub took: Duration,
}

/// Runs a request and tells what spokes did for it.
pub async fn noting<F: Future>(request: F) -> (F::Output, Option<Work>) {
    let noted = async {
        let output = request.await;
        (output, NOTED.with(RefCell::take))
    };
    NOTED.scope(RefCell::default(), noted).await
}

/// Notes a command that ended, if a request waits for it.
pub(super) fn note(mut work: Work) {
    // Elsewhere than in a request's own task there is nobody to tell.
    let _ = NOTED.try_with(|noted| {
        let mut noted = noted.borrow_mut();
        work.took += noted.as_ref().map_or(Duration::ZERO, |before| before.took);
        *noted = Some(work);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_command_names_the_way_and_all_count() {
        let work = |node: &str, route, millis| Work {
            spoke: "spoke-1".parse().unwrap(),
            node: NodeName::new(node),
            route,
            took: Duration::from_millis(millis),
        };
        note(work("a", Route::Local, 1));
        let (output, noted) = noting(async {
            note(work("a", Route::Local, 2));
            tokio::task::yield_now().await;
            note(work("b", Route::Forwarded, 3));
            7
        })
        .await;
        assert_eq!((output, noted), (7, Some(work("b", Route::Forwarded, 5))));
        assert_eq!(noting(async {}).await.1, None);
    }
}

//! Another configuration: unchanged bindings go on untouched, changed ones serve what they have.

use holdfast_core::AnswerKind::{Invalid, Unavailable};

use super::rig::*;

fn several(bindings: &[(&str, &str)]) -> Arc<Configuration> {
    Arc::new(configuration(bindings.iter().map(|(name, reference)| binding(name, reference))))
}

async fn started(rig: &Rig) -> Engine {
    for path in ["a", "b", "c"] {
        rig.provider.script(path, [give(value(&format!(r#"{{"k":"{path}","l":"{path}{path}"}}"#)))]);
    }
    let engine = rig.start(Arc::unwrap_or_clone(several(&[("a", "a#k"), ("b", "b#k")])));
    rig.after(SEC).await;
    assert_eq!(rig.provider.all_calls(), 2);
    rig.published("a");
    engine
}

#[tokio::test(start_paused = true)]
async fn what_is_unchanged_is_neither_asked_nor_published() {
    let rig = Rig::new();
    let engine = started(&rig).await;
    engine.apply(&several(&[("a", "a#k"), ("c", "c#k")])).unwrap();
    assert!(rig.board.get("b").is_none());
    rig.after(SEC).await;
    assert_eq!((rig.provider.all_calls(), rig.fresh("c")), (1, "c".into()));
    assert_eq!(rig.published("a"), (0, 0));
    rig.after(300 * SEC).await;
    assert!(rig.provider.calls("b").is_empty(), "nobody needs it any more");
    let polls = rig.provider.calls("a").len();
    assert!((7..=13).contains(&polls), "{polls}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_reference_serves_its_old_value_until_the_first_outcome() {
    let rig = Rig::new();
    let engine = started(&rig).await;
    rig.provider.script("c", [Step::Slow(3 * SEC, value(r#"{"k":"c"}"#))]);
    rig.provider.script("d", [Step::Slow(SEC, error(Unavailable))]);
    engine.apply(&several(&[("a", "c#k"), ("b", "d#k")])).unwrap();
    rig.after(500 * MS).await;
    assert_eq!((rig.fresh("a"), rig.fresh("b")), ("a".into(), "b".into()));
    rig.after(1500 * MS).await;
    assert_eq!(rig.served("b"), Ok(("b".into(), Some(Unavailable))));
    rig.after(2 * SEC).await;
    assert_eq!(rig.fresh("a"), "c");
}

#[tokio::test(start_paused = true)]
async fn another_fragment_of_the_same_object_is_one_reading() {
    let rig = Rig::new();
    let engine = started(&rig).await;
    engine.apply(&several(&[("a", "a#l"), ("b", "b#k"), ("more", "a#k")])).unwrap();
    rig.after(SEC).await;
    assert_eq!((rig.provider.all_calls(), rig.fresh("a"), rig.fresh("more")), (1, "aa".into(), "a".into()));
}

#[tokio::test(start_paused = true)]
async fn rules_count_from_the_reload_on() {
    let rig = Rig::new();
    let engine = started(&rig).await;
    let mut small = binding("a", "a#k");
    (small.rules.max_value_bytes, small.rules.poll) = (0, 5 * SEC);
    engine.apply(&Arc::new(configuration([small]))).unwrap();
    rig.after(SEC).await;
    assert_eq!(rig.served("a"), Ok(("a".into(), Some(Invalid))));
    rig.provider.all_calls();
    rig.after(60 * SEC).await;
    assert!((9..=16).contains(&rig.provider.calls("a").len()));
}

#[tokio::test(start_paused = true)]
async fn a_changed_upstream_is_built_anew_and_its_objects_read_through_it() {
    let rig = Rig::new();
    let engine = started(&rig).await;
    let mut other = Arc::unwrap_or_clone(several(&[("a", "a#k"), ("b", "b#k")]));
    other.upstreams.get_mut("up").unwrap().concurrency = 3;
    engine.apply(&Arc::new(other)).unwrap();
    rig.after(SEC).await;
    assert_eq!((rig.provider.all_calls(), rig.fresh("a")), (2, "a".into()));
    rig.after(60 * SEC).await;
    assert!(rig.provider.all_calls() <= 6, "the objects of before go on asking");
}

#[tokio::test(start_paused = true)]
async fn a_changed_certificate_counts_as_a_changed_upstream() {
    let rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, "one").unwrap();
    let with_ca = || {
        let mut configuration = configuration([binding("a", "a")]);
        configuration.upstreams.get_mut("up").unwrap().settings.ca_file = Some(ca.clone());
        configuration
    };
    let engine = rig.start(with_ca());
    rig.after(SEC).await;
    engine.apply(&Arc::new(with_ca())).unwrap();
    rig.after(SEC).await;
    assert_eq!(rig.provider.all_calls(), 1);
    std::fs::write(&ca, "two").unwrap();
    engine.apply(&Arc::new(with_ca())).unwrap();
    rig.after(SEC).await;
    assert_eq!(rig.provider.all_calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_applied_when_an_upstream_cannot_be_built() {
    let rig = Rig::new();
    let engine = started(&rig).await;
    let mut broken = Arc::unwrap_or_clone(several(&[("z", "z")]));
    broken.upstreams.clear();
    assert!(engine.apply(&Arc::new(broken)).is_err());
    assert!(rig.board.get("z").is_none());
    assert_eq!(rig.fresh("a"), "a");
}

#[tokio::test(start_paused = true)]
async fn bindings_that_are_added_hold_no_replica_back_that_was_ready() {
    let rig = Rig::new();
    let engine = started(&rig).await;
    rig.provider.script("d", [Step::Hang]);
    engine.apply(&several(&[("a", "a#k"), ("d", "d")])).unwrap();
    rig.after(SEC).await;
    assert_eq!(*engine.readiness().borrow(), Answer::Ready);
}

use super::*;

const NOW: Wall = Wall::from_micros(1_000_000_000);

fn wall(ms: i64) -> Wall {
    Wall::from_micros(ms * 1000)
}

fn dated(ms: i64) -> Offer {
    Offer { resolved_at: Some(wall(ms)), order: Some(3), ..Offer::default() }
}

fn mark_at(ms: i64) -> Watermark {
    let mut mark = Watermark::new();
    mark.delivered(NOW, &dated(ms));
    mark
}

#[test]
fn what_may_be_delivered_is_not_held() {
    let mut held = Held::default();
    assert_eq!(held.update(&mark_at(500_000), NOW, "a", dated(600_000)), Some(("a", dated(600_000))));
    assert!(held.is_empty());
    assert_eq!(held.fresh(&mark_at(500_000), NOW, wall(700_000)), None, "nothing waits");
}

#[test]
fn what_is_behind_waits_for_a_date_that_lifts_it() {
    let (mark, mut held) = (mark_at(500_000), Held::default());
    assert_eq!(held.update(&mark, NOW, "a", dated(400_000)), None);
    assert_eq!(held.fresh(&mark, NOW, wall(498_999)), None);
    assert!(!held.is_empty());
    assert_eq!(held.fresh(&mark, NOW, wall(530_000)), Some(("a", dated(530_000))));
    assert!(held.is_empty());
}

#[test]
fn a_value_dated_anew_lifts_as_well() {
    let (mark, mut held) = (mark_at(500_000), Held::default());
    assert_eq!(held.update(&mark, NOW, "a", dated(400_000)), None);
    assert_eq!(held.update(&mark, NOW, "a", dated(510_000)), Some(("a", dated(510_000))));
}

#[test]
fn the_newest_word_of_the_stream_replaces_what_waits() {
    let (mark, mut held) = (mark_at(500_000), Held::default());
    held.update(&mark, NOW, "a", dated(400_000));
    held.update(&mark, NOW, "b", dated(410_000));
    assert_eq!(held.fresh(&mark, NOW, wall(530_000)), Some(("b", dated(530_000))));
    held.update(&mark, NOW, "c", dated(420_000));
    held.clear();
    assert_eq!(held.fresh(&mark, NOW, wall(530_000)), None, "an error took its place");
}

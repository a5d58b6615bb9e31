use super::*;

fn wall(ms: i64) -> Wall {
    Wall::from_micros(ms * 1000)
}

/// The client's clock.
const NOW: i64 = 1_000_000;

fn dated(ms: i64) -> Offer {
    Offer { resolved_at: Some(wall(ms)), ..Offer::default() }
}

fn ordered(ms: i64, order: u64, epoch: &str) -> Offer {
    Offer { order: Some(order), epoch: Some(epoch.into()), ..dated(ms) }
}

fn after(offers: &[Offer]) -> Watermark {
    let mut mark = Watermark::new();
    for offer in offers {
        mark.delivered(wall(NOW), offer);
    }
    mark
}

fn judge(mark: &Watermark, offer: &Offer) -> Verdict {
    mark.offer(wall(NOW), offer)
}

use Verdict::{Behind, Deliver};

#[test]
fn without_a_mark_or_a_date_everything_passes() {
    assert_eq!(judge(&Watermark::new(), &dated(-5)), Deliver);
    assert_eq!(judge(&after(&[dated(NOW)]), &Offer::default()), Deliver);
    assert_eq!(after(&[Offer::default()]).mark(), None, "and no date raises no mark");
}

#[test]
fn a_second_of_difference_passes_and_more_is_behind() {
    let mark = after(&[dated(500_000)]);
    assert_eq!([499_000, 500_000, 501_000, 900_000].map(|ms| judge(&mark, &dated(ms))), [Deliver; 4]);
    assert_eq!(
        mark.offer(wall(NOW), &Offer { resolved_at: Some(Wall::from_micros(498_999_999)), ..dated(0) }),
        Behind
    );
    assert_eq!(judge(&mark, &dated(0)), Behind);
}

#[test]
fn inside_the_band_a_lower_order_of_the_same_domain_is_behind_on_both_sides() {
    let mark = after(&[ordered(500_000, 7, "c1")]);
    for ms in [499_000, 500_000, 501_000] {
        let orders = [6, 7, 8].map(|order| judge(&mark, &ordered(ms, order, "c1")));
        assert_eq!(orders, [Behind, Deliver, Deliver], "{ms}");
        assert_eq!(judge(&mark, &ordered(ms, 6, "c2")), Deliver, "another domain");
        assert_eq!(judge(&mark, &dated(ms)), Deliver, "no order at all");
    }
    assert_eq!(judge(&mark, &ordered(501_001, 6, "c1")), Deliver, "past the band the date decides");
    assert_eq!(judge(&mark, &ordered(498_999, 9, "c1")), Behind);
}

#[test]
fn orders_without_a_domain_are_of_one() {
    let plain = |order| Offer { order: Some(order), ..dated(500_000) };
    let mark = after(&[plain(7)]);
    assert_eq!([judge(&mark, &plain(6)), judge(&mark, &plain(8))], [Behind, Deliver]);
    assert_eq!(judge(&mark, &ordered(500_000, 6, "c1")), Deliver);
}

#[test]
fn the_mark_only_rises() {
    let mut mark = after(&[dated(500_000)]);
    mark.delivered(wall(NOW), &dated(499_500));
    assert_eq!(mark.mark(), Some(wall(500_000)));
    mark.delivered(wall(NOW), &Offer::default());
    assert_eq!(mark.mark(), Some(wall(500_000)));
    mark.delivered(wall(NOW), &dated(500_500));
    assert_eq!(mark.mark(), Some(wall(500_500)));
}

#[test]
fn a_higher_order_of_a_slower_clock_counts() {
    let mark = after(&[ordered(500_000, 7, "c1"), ordered(499_500, 9, "c1")]);
    assert_eq!(mark.mark(), Some(wall(500_000)));
    assert_eq!(judge(&mark, &ordered(500_200, 8, "c1")), Behind);
    assert_eq!(judge(&mark, &ordered(499_200, 9, "c1")), Deliver);
}

#[test]
fn nothing_moves_before_the_application_has_taken_it() {
    let mark = after(&[dated(500_000)]);
    assert_eq!(judge(&mark, &dated(900_000)), Deliver);
    assert_eq!(judge(&mark, &dated(500_000)), Deliver);
}

#[test]
fn a_date_far_ahead_passes_and_raises_nothing() {
    let mut mark = after(&[dated(NOW)]);
    assert_eq!(judge(&mark, &dated(NOW + 3_600_000)), Deliver);
    mark.delivered(wall(NOW), &dated(NOW + 3_600_000));
    assert_eq!(mark.mark(), Some(wall(NOW)));
    mark.delivered(wall(NOW), &dated(NOW + 60_000));
    assert_eq!(mark.mark(), Some(wall(NOW + 60_000)), "a minute is within what clocks may differ");
    assert_eq!(after(&[dated(NOW + 60_001)]).mark(), None);
}

#[test]
fn a_client_whose_clock_is_slow_gets_everything() {
    let mark = after(&[dated(500_000)]);
    assert_eq!(mark.offer(wall(400_000), &dated(498_000)), Deliver);
}

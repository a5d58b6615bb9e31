use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_core::Term;
use secrecy::ExposeSecret as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::hub::Hub;
use crate::logical::Cx;
use crate::mount::LeaseTtls;
use crate::store::Store as _;
use crate::testing::hub;

/// A token and its text.
struct Made {
    token: Token,
    text: String,
}

async fn make(cx: &Cx, new: NewToken) -> Made {
    let created = cx.hub.tokens.create(cx, new).await.unwrap();
    Made { token: created.token, text: created.grant.client_token.expose_secret().to_owned() }
}

fn plain() -> NewToken {
    NewToken::orphan("auth/test/login", LeaseTtls::default())
}

async fn child(cx: &Cx, parent: &Made) -> Made {
    make(cx, NewToken { parent: Some(parent.token.clone()), ..plain() }).await
}

fn alive(cx: &Cx, made: &Made) -> bool {
    cx.hub.tokens.lookup(&cx.storage, &made.text).unwrap().is_some()
}

/// A tree: one root, two children, three grandchildren below each.
async fn tree(cx: &Cx) -> Vec<Made> {
    let mut all = vec![make(cx, plain()).await];
    for _ in 0..2 {
        let parent = child(cx, &all[0]).await;
        for _ in 0..3 {
            let grandchild = child(cx, &parent).await;
            cx.storage.put(&format!("cubbyhole/{}/x", grandchild.token.id), &1).await.unwrap();
            all.push(grandchild);
        }
        all.push(parent);
    }
    all
}

fn cx_in(hub: &Arc<Hub>, term: u64) -> Cx {
    hub.cx(Term::new(term), Instant::now() + Duration::from_secs(60), CancellationToken::new())
}

#[tokio::test]
async fn a_token_is_known_by_its_text_and_accessor_alone() {
    let (store, hub, cx) = hub();
    let made = make(&cx, plain()).await;
    assert!(made.text.starts_with("hvs.") && made.text.len() == 28);
    let found = hub.tokens.lookup(&cx.storage, &made.text).unwrap().unwrap();
    assert_eq!(found, made.token);
    assert_eq!(hub.tokens.lookup_accessor(&cx.storage, &found.accessor).unwrap().unwrap(), found);
    for unknown in ["", "x", "hvs.", &made.text[..27], "hvb.zzz", "../../id", &"x".repeat(1 << 20)] {
        assert_eq!(hub.tokens.lookup(&cx.storage, unknown).unwrap(), None);
        assert_eq!(hub.tokens.lookup_accessor(&cx.storage, unknown).unwrap(), None);
    }
    let raw = store.scan("", None, 100).unwrap();
    assert!(raw.iter().all(|(key, _)| !key.contains(&made.text[4..])));
}

#[tokio::test]
async fn texts_with_the_older_prefix_are_tokens_too() {
    let (_, hub, cx) = hub();
    let old = format!("s.{}", "a1B2".repeat(6));
    hub.tokens.create_root(&cx.storage, Some(&old)).await.unwrap();
    let found = hub.tokens.lookup(&cx.storage, &old).unwrap().unwrap();
    assert!(found.is_root() && found.expires.is_none());
    assert!(hub.tokens.lookup(&cx.storage, &old[2..]).unwrap().is_none());
}

#[tokio::test]
async fn a_root_token_may_have_a_chosen_text() {
    let (_, hub, cx) = hub();
    let text = hub.tokens.create_root(&cx.storage, Some("dev")).await.unwrap();
    assert_eq!(text.expose_secret(), "dev");
    let token = hub.tokens.lookup(&cx.storage, "dev").unwrap().unwrap();
    assert!(token.is_root() && token.expires.is_none());
    hub.tokens.advance(1_000_000_000);
    assert!(hub.tokens.lookup(&cx.storage, "dev").unwrap().is_some());
}

#[tokio::test]
async fn revoking_a_parent_takes_everything_below() {
    let (_, hub, cx) = hub();
    let bystander = make(&cx, plain()).await;
    let all = tree(&cx).await;
    hub.tokens.revoke_tree(&cx, &all[0].token.id).await.unwrap();
    assert!(all.iter().all(|made| !alive(&cx, made)));
    assert!(alive(&cx, &bystander));
    assert_eq!(cx.storage.count("token/").unwrap(), 3);
    assert_eq!(cx.storage.count("cubbyhole/").unwrap(), 0);
    hub.tokens.revoke_tree(&cx, &all[0].token.id).await.unwrap();
}

#[tokio::test]
async fn revoking_alone_leaves_orphans() {
    let (_, hub, cx) = hub();
    let parent = make(&cx, plain()).await;
    let kept = child(&cx, &parent).await;
    hub.tokens.revoke_orphan(&cx, &parent.token.id).await.unwrap();
    assert!(!alive(&cx, &parent));
    let kept = hub.tokens.lookup(&cx.storage, &kept.text).unwrap().unwrap();
    assert_eq!(kept.parent, None);
    assert_eq!(cx.storage.count("token/child/").unwrap(), 0);
}

#[tokio::test]
async fn many_children_go_in_few_batches() {
    let (store, hub, cx) = hub();
    let parent = make(&cx, plain()).await;
    for _ in 0..300 {
        child(&cx, &parent).await;
    }
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    store.on_applied(Arc::new(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
    }));
    hub.tokens.revoke_tree(&cx, &parent.token.id).await.unwrap();
    assert_eq!(cx.storage.count("token/").unwrap(), 0);
    assert!(count.load(Ordering::Relaxed) <= 10, "{count:?} batches");
}

#[tokio::test]
async fn a_long_chain_goes_without_recursion() {
    let (_, hub, cx) = hub();
    let first = make(&cx, plain()).await;
    let mut last = child(&cx, &first).await;
    for _ in 0..400 {
        last = child(&cx, &last).await;
    }
    hub.tokens.revoke_tree(&cx, &first.token.id).await.unwrap();
    assert!(!alive(&cx, &last));
    assert_eq!(cx.storage.count("token/").unwrap(), 0);
}

/// Leadership is lost after each possible number of commits; the next active node's background ends the work.
#[tokio::test]
async fn an_interrupted_revocation_is_ended_by_the_next_active_node() {
    for (spare, cuts) in [(false, 40), (true, 12)] {
        for cut in 1..cuts {
            let (store, hub, cx) = hub();
            let all = tree(&cx).await;
            let (count, memory) = (AtomicUsize::new(0), Arc::clone(&store));
            store.on_applied(Arc::new(move |_| {
                if count.fetch_add(1, Ordering::Relaxed) + 1 == cut {
                    memory.set_term(Term::new(2));
                }
            }));
            let id = &all[0].token.id;
            let done = if spare {
                hub.tokens.revoke_orphan(&cx, id).await
            } else {
                hub.tokens.revoke_tree(&cx, id).await
            };
            assert!(!alive(&cx, &all[0]), "cut {cut}: refused from the first commit on");
            let interrupted = done.is_err();
            store.set_term(Term::new(2));
            hub.tokens.expire_due(&hub, Term::new(2), &CancellationToken::new()).await.unwrap();
            let living = all.iter().filter(|made| alive(&cx, made)).count();
            assert_eq!(living, if spare { 8 } else { 0 }, "cut {cut}, interrupted {interrupted}");
            assert_eq!(cx.storage.count("token/id/").unwrap() as usize, living);
            assert_eq!(cx.storage.count("token/expiry/").unwrap() as usize, living);
            assert_eq!(cx.storage.count("token/accessor/").unwrap() as usize, living);
            assert_eq!(cx.storage.count("token/child/").unwrap(), if spare { 6 } else { 0 });
            assert_eq!(cx.storage.count("cubbyhole/").unwrap(), if spare { 6 } else { 0 });
        }
    }
}

#[tokio::test]
async fn expiry_revokes_in_time_and_spares_the_renewed() {
    let (_, hub, cx) = hub();
    let short = make(&cx, NewToken { ttl: 10, ..plain() }).await;
    let below = child(&cx, &short).await;
    let renewed = make(&cx, NewToken { ttl: 10, ..plain() }).await;
    let (token, _) = hub.tokens.renew(&cx, &renewed.token, 100).await.unwrap();
    assert_eq!(token.ttl(hub.tokens.now()), 100);
    let run = CancellationToken::new();
    hub.tokens.expire_due(&hub, cx.term, &run).await.unwrap();
    assert!(alive(&cx, &short));
    hub.tokens.advance(11);
    assert!(!alive(&cx, &short) && alive(&cx, &renewed));
    hub.tokens.expire_due(&hub, cx.term, &run).await.unwrap();
    assert!(!alive(&cx, &below) && alive(&cx, &renewed));
    assert_eq!(cx.storage.count("token/id/").unwrap(), 1);
    hub.tokens.advance(100);
    assert_eq!(hub.tokens.renew(&cx, &renewed.token, 100).await.unwrap_err().status(), 403);
}

/// Which runs with the monotonic clock: a time of day that is set back keeps no token alive.
#[tokio::test(start_paused = true)]
async fn a_token_ends_by_the_clock_of_leases() {
    let (_, hub, cx) = hub();
    let made = make(&cx, NewToken { ttl: 100, ..plain() }).await;
    tokio::time::advance(Duration::from_secs(98)).await;
    assert!(alive(&cx, &made));
    tokio::time::advance(Duration::from_secs(3)).await;
    assert!(!alive(&cx, &made));
    hub.tokens.expire_due(&hub, cx.term, &CancellationToken::new()).await.unwrap();
    assert_eq!(cx.storage.count("token/").unwrap(), 0);
}

#[tokio::test]
async fn the_background_stops_with_its_term() {
    let (store, hub, cx) = hub();
    make(&cx, NewToken { ttl: 1, ..plain() }).await;
    hub.tokens.advance(2);
    store.set_term(Term::new(2));
    let run = Tokens::run_expiry(Arc::clone(&hub), Term::new(1), CancellationToken::new());
    tokio::time::timeout(Duration::from_secs(20), run).await.unwrap();
    assert_eq!(cx.storage.count("token/id/").unwrap(), 1);

    let cancel = CancellationToken::new();
    let tasks = holdfast_ops::Tasks::new("test");
    let task = tasks.spawn("expiry", Tokens::run_expiry(Arc::clone(&hub), Term::new(2), cancel.clone()));
    let deadline = Instant::now() + Duration::from_secs(20);
    while cx.storage.count("token/id/").unwrap() > 0 {
        assert!(Instant::now() < deadline, "the expired token stays");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cancel.cancel();
    tokio::time::timeout(Duration::from_secs(20), task.join()).await.unwrap().unwrap();
}

#[tokio::test]
async fn nothing_is_made_below_a_token_that_is_going() {
    let (_, hub, cx) = hub();
    let parent = make(&cx, plain()).await;
    hub.tokens.revoke_tree(&cx, &parent.token.id).await.unwrap();
    let new = NewToken { parent: Some(parent.token.clone()), ..plain() };
    assert_eq!(hub.tokens.create(&cx, new).await.unwrap_err().status(), 403);
    assert_eq!(cx.storage.count("token/").unwrap(), 0);
}

#[tokio::test]
async fn uses_are_counted_exactly_under_concurrency() {
    let (_, hub, cx) = hub();
    let made = make(&cx, NewToken { num_uses: 5, ..plain() }).await;
    let token = hub.tokens.lookup(&cx.storage, &made.text).unwrap().unwrap();
    let tries = (0..20).map(|_| hub.tokens.consume_use(&cx, &token));
    let used = futures_util::future::join_all(tries).await;
    assert_eq!(used.iter().filter(|result| result.is_ok()).count(), 5);
    assert!(used.iter().filter_map(|result| result.as_ref().err()).all(|error| error.status() == 403));
    assert!(!alive(&cx, &made));
    hub.tokens.finish_use(&cx, &token).await.unwrap();
    assert_eq!(cx.storage.count("token/").unwrap(), 0);
}

#[tokio::test]
async fn a_last_use_that_was_never_finished_is_cleaned_up() {
    let (_, hub, cx) = hub();
    let made = make(&cx, NewToken { num_uses: 1, ..plain() }).await;
    assert_eq!(check_leased(&made.token).unwrap_err().status(), 400);
    hub.tokens.consume_use(&cx, &made.token).await.unwrap();
    hub.tokens.advance(901);
    hub.tokens.expire_due(&hub, cx.term, &CancellationToken::new()).await.unwrap();
    assert_eq!(cx.storage.count("token/").unwrap(), 0);
    assert!(check_leased(&Token { num_uses: 2, ..Token::default() }).is_ok());
    assert!(check_leased(&Token::default()).is_ok());
}

#[tokio::test]
async fn tokens_of_a_removed_method_are_revoked() {
    let (_, hub, cx) = hub();
    let gone = make(&cx, plain()).await;
    let kept = make(&cx, NewToken { path: "auth/other/login".into(), ..plain() }).await;
    hub.tokens.revoke_made_by(&cx, "auth/test/").await.unwrap();
    assert!(!alive(&cx, &gone) && alive(&cx, &kept));
}

#[tokio::test]
async fn a_former_active_node_makes_and_revokes_nothing() {
    let (store, hub, cx) = hub();
    let made = make(&cx, plain()).await;
    store.set_term(Term::new(2));
    assert!(hub.tokens.create(&cx, plain()).await.is_err());
    assert!(hub.tokens.revoke_tree(&cx, &made.token.id).await.is_err());
    assert!(alive(&cx_in(&hub, 2), &made));
}

#[test]
fn the_longest_life_of_a_token() {
    let token = |renewable, explicit_max_ttl, expires| Token {
        created: 1000,
        renewable,
        explicit_max_ttl,
        expires,
        ..Token::default()
    };
    for (token, life) in [
        (token(true, 0, Some(1100)), None),
        (token(false, 0, Some(1100)), Some(50)),
        (token(true, 200, Some(1100)), Some(150)),
        (token(false, 200, Some(1100)), Some(150)),
        (token(false, 0, None), None),
        (token(false, 0, Some(1000)), Some(0)),
    ] {
        assert_eq!(Tokens::longest_life(&token, 1050), life, "{token:?}");
    }
}

//! Between the messages of the wire and the terms of the core; what does not fit stops here.

use std::time::Duration;

use bytes::Bytes;
use holdfast_core::SpokeName;
use holdfast_core::ownership::{BootId, Claim, NodeName, Seq, SpokeSet, Stamp, Superseded};
use holdfast_core::{Epoch, Term};
use holdfast_proto::relay::v1 as proto;

/// A message is not what it should be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid {0}")]
pub struct Malformed(&'static str);

/// A spoke's dial.
pub fn stamp(epoch: u64, boot: &[u8]) -> Result<Stamp, Malformed> {
    let boot = BootId::try_from(boot).map_err(|_| Malformed("boot id"))?;
    Ok(Stamp { epoch: Epoch::new(epoch), boot })
}

/// The name of a spoke.
pub fn spoke(text: &str) -> Result<SpokeName, Malformed> {
    SpokeName::parse(text).map_err(|_| Malformed("spoke name"))
}

fn boot(id: BootId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

fn millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

/// Who sends a set.
pub struct Sender<'a> {
    /// Its cluster address.
    pub address: &'a str,
    /// New with every unseal.
    pub boot: &'a [u8],
    /// Where spokes dial it; empty when it does not say.
    pub endpoint: &'a str,
    /// Why its listener is down; empty while it listens.
    pub listener_error: &'a str,
}

/// A set as it is sent.
pub fn set_to_wire(set: SpokeSet, sender: &Sender<'_>) -> proto::SpokeSet {
    let stream = |claim: Claim| proto::SpokeStream {
        spoke_name: claim.spoke.to_string(),
        session_epoch: claim.stamp.epoch.into_inner(),
        boot_id: boot(claim.stamp.boot),
        connected_age_ms: millis(claim.connected_age),
        last_seen_age_ms: millis(claim.seen_age),
        cert_not_after: claim.cert_not_after,
    };
    proto::SpokeSet {
        term: set.term.into_inner(),
        node_id: set.node.to_string(),
        node_cluster_addr: sender.address.to_owned(),
        node_boot_id: Bytes::copy_from_slice(sender.boot),
        seq: set.seq.into_inner(),
        relay_endpoint: sender.endpoint.to_owned(),
        spokes: set.spokes.into_iter().map(stream).collect(),
        listener_error: sender.listener_error.to_owned(),
    }
}

/// A set as it came.
pub fn set_from_wire(set: proto::SpokeSet) -> Result<SpokeSet, Malformed> {
    let claim = |stream: proto::SpokeStream| {
        Ok(Claim {
            spoke: spoke(&stream.spoke_name)?,
            stamp: stamp(stream.session_epoch, &stream.boot_id)?,
            connected_age: Duration::from_millis(stream.connected_age_ms),
            seen_age: Duration::from_millis(stream.last_seen_age_ms),
            cert_not_after: stream.cert_not_after,
        })
    };
    if set.node_id.is_empty() {
        return Err(Malformed("node id"));
    }
    Ok(SpokeSet {
        term: Term::new(set.term),
        node: NodeName::new(&set.node_id),
        seq: Seq::new(set.seq),
        spokes: set.spokes.into_iter().map(claim).collect::<Result<_, _>>()?,
    })
}

/// A stream that lost, as it is sent.
pub fn superseded_to_wire(lost: &Superseded) -> proto::SupersededStream {
    proto::SupersededStream {
        spoke_name: lost.spoke.to_string(),
        session_epoch: lost.stamp.epoch.into_inner(),
        boot_id: boot(lost.stamp.boot),
        by_epoch: lost.by.epoch.into_inner(),
        by_boot_id: boot(lost.by.boot),
        alive: lost.alive,
    }
}

/// Streams that lost, as they came.
pub fn superseded_from_wire(lost: Vec<proto::SupersededStream>) -> Result<Vec<Superseded>, Malformed> {
    let one = |lost: proto::SupersededStream| {
        Ok(Superseded {
            spoke: spoke(&lost.spoke_name)?,
            stamp: stamp(lost.session_epoch, &lost.boot_id)?,
            by: stamp(lost.by_epoch, &lost.by_boot_id)?,
            alive: lost.alive,
        })
    };
    lost.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    fn arbitrary_stamp() -> impl Strategy<Value = Stamp> {
        (any::<u64>(), any::<[u8; 16]>())
            .prop_map(|(epoch, boot)| Stamp { epoch: Epoch::new(epoch), boot: BootId::new(boot) })
    }

    fn arbitrary_claim() -> impl Strategy<Value = Claim> {
        ("[a-z][a-z0-9._-]{0,20}", arbitrary_stamp(), any::<u32>(), any::<u32>(), any::<i64>()).prop_map(
            |(name, stamp, up, seen, cert_not_after)| Claim {
                spoke: SpokeName::parse(&name).unwrap_or_else(|_| SpokeName::parse("x").unwrap()),
                stamp,
                connected_age: Duration::from_millis(up.into()),
                seen_age: Duration::from_millis(seen.into()),
                cert_not_after,
            },
        )
    }

    proptest! {
        #[test]
        fn a_set_survives_the_wire(
            term: u64, seq: u64, spokes in proptest::collection::vec(arbitrary_claim(), 0..8)
        ) {
            let set = SpokeSet { term: Term::new(term), node: NodeName::new("n"), seq: Seq::new(seq), spokes };
            let sender = Sender { address: "a:1", boot: &[7; 16], endpoint: "b:2", listener_error: "" };
            let bytes = set_to_wire(set.clone(), &sender).encode_to_vec();
            let back = set_from_wire(proto::SpokeSet::decode(bytes.as_slice()).unwrap()).unwrap();
            prop_assert_eq!(back, set);
        }

        #[test]
        fn what_is_superseded_survives_the_wire(
            stamp in arbitrary_stamp(), by in arbitrary_stamp(), alive: bool
        ) {
            let lost = Superseded { spoke: SpokeName::parse("s").unwrap(), stamp, by, alive };
            prop_assert_eq!(superseded_from_wire(vec![superseded_to_wire(&lost)]).unwrap(), vec![lost]);
        }

        #[test]
        fn no_bytes_make_a_panic(bytes: Vec<u8>) {
            if let Ok(set) = proto::SpokeSet::decode(bytes.as_slice()) {
                drop(set_from_wire(set));
            }
            if let Ok(reply) = proto::AnnounceReply::decode(bytes.as_slice()) {
                drop(superseded_from_wire(reply.superseded));
            }
        }
    }

    #[test]
    fn a_set_with_a_bad_name_or_boot_id_is_refused_whole() {
        let stream = proto::SpokeStream { spoke_name: "a b".into(), ..proto::SpokeStream::default() };
        let set = proto::SpokeSet { node_id: "n".into(), spokes: vec![stream], ..proto::SpokeSet::default() };
        assert_eq!(set_from_wire(set), Err(Malformed("spoke name")));
        assert_eq!(stamp(1, &[0; 15]), Err(Malformed("boot id")));
        assert_eq!(set_from_wire(proto::SpokeSet::default()), Err(Malformed("node id")));
    }
}

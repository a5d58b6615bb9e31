//! The cluster's side of a join: who can decrypt the challenge holds the root key, and is let in.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::Node;
use crate::barrier::keyring::SecretKey;
use crate::barrier::seal::{SealPublic, SealRecord};
use crate::cluster::{ClusterError, NodeAddress, NodeName};
use crate::config::{is_host_port, is_url};
use crate::error::ApiError;

/// How long a challenge can be answered: an operator may have to find the shares first.
const LIFE: Duration = Duration::from_secs(3600);
/// Challenges open at once; the oldest makes room.
const MAX_OPEN: usize = 128;
/// The longest nonce that a question may carry.
const MAX_NONCE: usize = 128;
/// What the challenge is bound to.
pub(super) const AAD: &[u8] = b"holdfast/join/challenge";

/// The challenges that were not answered yet, by the name of the joining node.
#[derive(Default)]
pub(super) struct Challenges(BTreeMap<String, Challenge>);

struct Challenge {
    bytes: Zeroizing<[u8; 32]>,
    since: Instant,
}

/// What the standing of a node is bound to, followed by the name and the nonce of the node that asks.
const STANDING: &[u8] = b"holdfast/join/standing/";
const MEMBER: &[u8] = b"member";
const STRANGER: &[u8] = b"stranger";

/// What a joining node is told.
#[derive(Debug, Deserialize, Serialize)]
pub struct ChallengeReply {
    /// The public part of the seal.
    pub seal: SealPublic,
    /// 32 random bytes under the root key, base64.
    pub challenge: String,
    /// Whether the node is a member, under the root key and bound to the nonce of its question, base64.
    #[serde(default)]
    pub standing: String,
}

impl ChallengeReply {
    /// Whether the cluster counts the node `server_id` as a member; none when the word is not that of the holder of
    /// `root` on this very question, so that nobody else can talk a member into wiping itself.
    pub(super) fn is_member(&self, root: &SecretKey, server_id: &str, nonce: &str) -> Option<bool> {
        let sealed = BASE64.decode(&self.standing).ok()?;
        match root.open(&standing_aad(server_id, nonce), &sealed).ok()?.as_slice() {
            MEMBER => Some(true),
            STRANGER => Some(false),
            _ => None,
        }
    }
}

fn standing_aad(server_id: &str, nonce: &str) -> Vec<u8> {
    [STANDING, server_id.as_bytes(), b"/", nonce.as_bytes()].concat()
}

/// What a joining node answers.
#[derive(Debug, Deserialize, Serialize)]
pub struct Answer {
    /// Its name.
    pub server_id: String,
    /// The 32 bytes, base64.
    pub answer: String,
    /// `host:port` of its cluster port.
    pub cluster_addr: String,
    /// URL of its API.
    #[serde(default)]
    pub api_addr: String,
    /// Whether it is to stay without a vote.
    #[serde(default)]
    pub non_voter: bool,
}

/// What a node that answered well receives: the whole seal, identity included, readable under the root key only.
#[derive(Debug, Deserialize, Serialize)]
pub struct AnswerReply {
    /// The seal.
    pub seal: SealRecord,
}

impl Challenges {
    /// The challenge of a node. The same one until it is answered or too old: asking again must not spoil it.
    fn of(&mut self, server: &str, now: Instant) -> Zeroizing<[u8; 32]> {
        self.0.retain(|_, challenge| now.saturating_duration_since(challenge.since) < LIFE);
        if let Some(challenge) = self.0.get(server) {
            return challenge.bytes.clone();
        }
        if self.0.len() >= MAX_OPEN
            && let Some(oldest) = self.0.iter().min_by_key(|(_, c)| c.since).map(|(name, _)| name.clone())
        {
            self.0.remove(&oldest);
        }
        let bytes = Zeroizing::new(holdfast_ops::rand::bytes());
        self.0.insert(server.to_owned(), Challenge { bytes: bytes.clone(), since: now });
        bytes
    }

    /// Whether the answer is right; a right answer is used up.
    fn check(&mut self, server: &str, answer: &[u8], now: Instant) -> bool {
        let right = self.0.get(server).is_some_and(|challenge| {
            let fresh = now.saturating_duration_since(challenge.since) < LIFE;
            fresh && bool::from(challenge.bytes.as_slice().ct_eq(answer))
        });
        if right {
            self.0.remove(server);
        }
        right
    }
}

impl Node {
    /// Challenges a node that wants to join, and tells it whether it is a member already.
    pub fn challenge(&self, server_id: &str, nonce: &str) -> Result<ChallengeReply, ApiError> {
        let running = self.running().ok_or_else(ApiError::sealed)?;
        check_name(server_id)?;
        if nonce.len() > MAX_NONCE {
            return Err(ApiError::invalid(format!("nonce must have at most {MAX_NONCE} characters")));
        }
        let bytes = self.challenges.lock().of(server_id, Instant::now());
        let sealed = running.root.seal(AAD, bytes.as_slice()).map_err(ApiError::internal)?;
        let member = running.hub.cluster.members().iter().any(|member| member.node.0 == server_id);
        let standing =
            running.root.seal(&standing_aad(server_id, nonce), if member { MEMBER } else { STRANGER });
        Ok(ChallengeReply {
            seal: running.record.public.clone(),
            challenge: BASE64.encode(sealed),
            standing: BASE64.encode(standing.map_err(ApiError::internal)?),
        })
    }

    /// Takes a node's answer; the right one makes it a member.
    pub async fn admit(&self, answer: Answer) -> Result<AnswerReply, ApiError> {
        let running = self.running().ok_or_else(ApiError::sealed)?;
        check_name(&answer.server_id)?;
        if !is_host_port(&answer.cluster_addr) {
            return Err(ApiError::invalid("cluster_addr must be host:port"));
        }
        if !answer.api_addr.is_empty() && !is_url(&answer.api_addr) {
            return Err(ApiError::invalid("api_addr must be a URL"));
        }
        let given = BASE64.decode(&answer.answer).map(Zeroizing::new).unwrap_or_default();
        if !self.challenges.lock().check(&answer.server_id, &given, Instant::now()) {
            return Err(ApiError::invalid("the answer does not fit the challenge"));
        }
        let name = NodeName(answer.server_id);
        let address = NodeAddress { cluster: answer.cluster_addr, api: answer.api_addr };
        tracing::info!(node = %name, cluster = %address.cluster, "a node joins");
        running.hub.cluster.add(name, address, answer.non_voter).await.map_err(cluster_error)?;
        Ok(AnswerReply { seal: running.record.clone() })
    }
}

/// What a client is told of a failed change to the cluster.
pub fn cluster_error(error: ClusterError) -> ApiError {
    match &error {
        ClusterError::NotLeader => ApiError::no_leader().caused_by(error),
        ClusterError::Busy => ApiError::unavailable(error.to_string()),
        ClusterError::Timeout => ApiError::outcome_unknown().caused_by(error),
        ClusterError::UnknownMember(_) | ClusterError::Invalid(_) | ClusterError::Image(_) => {
            ApiError::invalid(error.to_string())
        }
        ClusterError::Internal(_) => ApiError::internal(error),
    }
}

fn check_name(name: &str) -> Result<(), ApiError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > 128 || !name.chars().all(allowed) {
        return Err(ApiError::invalid("server_id must be 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_answered_once_by_its_own_node() {
        let mut challenges = Challenges::default();
        let now = Instant::now();
        let bytes = challenges.of("a", now);
        assert_eq!(bytes, challenges.of("a", now), "asking again does not spoil it");
        assert!(!challenges.check("b", bytes.as_slice(), now));
        assert!(!challenges.check("a", &[0; 32], now));
        assert!(!challenges.check("a", bytes.as_slice(), now + LIFE));
        assert!(challenges.check("a", bytes.as_slice(), now));
        assert!(!challenges.check("a", bytes.as_slice(), now));
    }

    #[test]
    fn the_standing_of_a_node_is_proved_for_its_own_question_only() {
        let root = SecretKey::random().unwrap();
        let sealed = root.seal(&standing_aad("n1", "nonce"), STRANGER).unwrap();
        let seal = SealPublic {
            cluster_id: "c".into(),
            cluster_name: String::new(),
            seal: crate::barrier::seal::SealType::Shamir,
            shares: 1,
            threshold: 1,
            wrapped_root: None,
        };
        let reply = ChallengeReply { seal, challenge: String::new(), standing: BASE64.encode(sealed) };
        assert_eq!(reply.is_member(&root, "n1", "nonce"), Some(false));
        assert_eq!(reply.is_member(&root, "n2", "nonce"), None);
        assert_eq!(reply.is_member(&root, "n1", "another"), None);
        assert_eq!(reply.is_member(&SecretKey::random().unwrap(), "n1", "nonce"), None);
    }

    #[test]
    fn the_number_of_challenges_is_bounded() {
        let mut challenges = Challenges::default();
        for i in 0..1000 {
            challenges.of(&format!("n{i}"), Instant::now());
        }
        assert_eq!(challenges.0.len(), MAX_OPEN);
    }
}

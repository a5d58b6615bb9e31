//! The platform as a whole: where it keeps its files, what runs, and the card by which other commands find it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::Interrupts;
use super::cleanup::Cleanup;
use super::nodes::{Node, Nodes};
use super::process;
pub use super::setup::Login;
use super::setup::{self, Access};
use super::spokes::Spokes;
use super::steps::Steps;
use crate::args::DevArgs;
use crate::output::Printer;

/// The card's name in the data directory.
const CARD: &str = "platform.json";
/// How long everything may take to end.
const GRACE: Duration = Duration::from_secs(12);

/// Nodes and spokes with their files.
pub struct Platform {
    home: PathBuf,
    temporary: Option<tempfile::TempDir>,
    /// Once logins of a database can be asked for.
    issuing: Option<Cleanup>,
    /// The hub nodes.
    pub nodes: Nodes,
    /// The spokes.
    pub spokes: Spokes,
}

/// What is known of a platform once it runs.
pub struct Ready {
    /// How it is entered.
    pub access: Access,
    /// The roles that give logins.
    pub logins: Vec<Login>,
}

/// How another command finds a running platform. Readable by its owner only, since it holds the root token.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Card {
    /// The nodes.
    pub nodes: Vec<NodeCard>,
    /// The root token.
    #[serde(serialize_with = "exposed")]
    pub root_token: SecretString,
    /// The roles that give logins.
    pub logins: Vec<Login>,
}

/// A node on the card.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct NodeCard {
    /// Its node id.
    pub node: String,
    /// The URL of its API.
    pub api: String,
    /// Its process, while it runs.
    pub pid: Option<u32>,
    /// Its configuration, which that process was started with.
    pub config: PathBuf,
}

/// The card is where the token is kept for its owner.
fn exposed<S: serde::Serializer>(secret: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose_secret())
}

impl Card {
    /// Reads the card of the platform with this data directory.
    pub fn read(home: &Path) -> Result<Self> {
        let file = home.join(CARD);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("no platform runs with the data directory {home:?}: no {CARD} in it"))?;
        serde_json::from_str(&text).with_context(|| format!("{file:?} is no card of a platform"))
    }
}

impl Platform {
    /// Makes folders and configurations.
    pub fn prepare(args: &DevArgs) -> Result<Self> {
        let (home, temporary) = match &args.data {
            Some(path) => {
                std::fs::create_dir_all(path).with_context(|| format!("cannot make {path:?}"))?;
                (path.canonicalize()?, None)
            }
            None => {
                let dir = tempfile::Builder::new().prefix("holdfast-dev-").tempdir()?;
                (dir.path().to_owned(), Some(dir))
            }
        };
        let nodes = Nodes::prepare(&home, args)?;
        let spokes = Spokes::prepare(&home, args, &nodes)?;
        Ok(Self { home, temporary, issuing: None, nodes, spokes })
    }

    /// The data directory.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Whether the data directory goes with the platform.
    pub fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Starts everything and gives it what it needs.
    pub async fn start(&mut self, args: &DevArgs, print: Printer) -> Result<Ready> {
        let mut steps = Steps::new(print);
        self.nodes.start().await?;
        steps.done("the first node listens");
        let wanted = args.root_token.as_ref().map(ExposeSecret::expose_secret);
        let access = setup::initialise(&self.nodes, &self.home, wanted).await?;
        steps.done("the cluster is initialised and unsealed");
        setup::wait_voters(&self.nodes, &access).await?;
        steps.done(&format!("{0} of {0} nodes vote", self.nodes.len()));
        setup::mounts(&self.nodes, &access).await?;
        steps.done("secret/ (kv, version 2) and database/ are mounted");
        if self.spokes.len() > 0 {
            self.spokes.start(&self.nodes, &access).await?;
            steps.done(&format!(
                "relay/ is mounted; {} of {0} spokes joined and are connected",
                self.spokes.len()
            ));
        }
        let mut logins = Vec::new();
        if let Some(url) = &args.postgres {
            self.issuing = Some(Cleanup::new(&self.nodes, &access)?);
            let url = url.expose_secret();
            logins = setup::postgres(&self.nodes, &access, url, self.spokes.len()).await?;
            for login in &logins {
                let way =
                    login.spoke.as_ref().map_or("directly".to_owned(), |name| format!("through {name}"));
                steps.done(&format!("{} is a role of the database, reached {way}", login.path));
            }
        }
        let ready = Ready { access, logins };
        self.write_card(&ready)?;
        Ok(ready)
    }

    /// What another command needs to know.
    pub fn card(&self, ready: &Ready) -> Card {
        let node = |n: &Node| NodeCard {
            node: n.id().to_owned(),
            api: n.api(),
            pid: n.daemon.pid(),
            config: n.config().to_owned(),
        };
        Card {
            nodes: self.nodes.iter().map(node).collect(),
            root_token: ready.access.root_token().to_owned().into(),
            logins: ready.logins.clone(),
        }
    }

    /// Writes the card; again whenever a process was started anew.
    pub fn write_card(&self, ready: &Ready) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.card(ready))?;
        let partial = self.home.join(format!("{CARD}.partial"));
        let mut file =
            std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&partial, self.home.join(CARD))?;
        Ok(())
    }

    /// Ends everything, the spokes first; the data directory goes when the platform is dropped, if it is temporary.
    /// An interrupt meanwhile leaves the logins where they are, and says so.
    pub async fn stop(&mut self, print: Printer, interrupts: &mut Interrupts) {
        let _ = std::fs::remove_file(self.home.join(CARD));
        if self.is_temporary() {
            self.revoke(print, interrupts).await;
        }
        process::stop(self.spokes.daemons().collect(), GRACE).await;
        process::stop(self.nodes.daemons().collect(), GRACE).await;
    }

    /// Removes the users that are still in the database: with the data goes the memory of them, and they would stay.
    async fn revoke(&mut self, print: Printer, interrupts: &mut Interrupts) {
        let Some(cleanup) = self.issuing.take() else { return };
        print.progress("Removing the logins from the database; Ctrl-C leaves them there …");
        let why = tokio::select! {
            done = cleanup.run() => match done {
                Ok(()) => return,
                Err(why) => why,
            },
            () = interrupts.impatient() => "interrupted".to_owned(),
        };
        print.note(format!("WARNING: logins may be left in the database, for ever: {why}"));
    }
}

//! The text of a reference: how it is read, what is refused in it, and how it is shown.
//!
//! What must hold: what is refused is refused when the configuration is loaded and never ignored; an option whose name is
//! that of a secret is shown nowhere with its value.

use std::collections::BTreeMap;
use std::fmt;

use percent_encoding::percent_decode_str;

use super::fragment::BadFragment;
use super::name;
use super::scheme::{Scheme, UpstreamKind};
use crate::config::UpstreamSettings;
use crate::digest::{Canonical, Digest};
use crate::policy::glob::Glob;
use crate::reference::{Fragment, ObjectKey, Reference};
use crate::upstream::exec;

/// Options that would put a secret into plain text.
const SECRETS: [&str; 15] = [
    "token",
    "password",
    "secret",
    "apikey",
    "api_key",
    "sas",
    "credential",
    "client_secret",
    "secret_access_key",
    "access_key",
    "private_key",
    "secret_key",
    "pwd",
    "passwd",
    "api-key",
];

/// What is shown in a secret's place.
const HIDDEN: &str = "[redacted]";

/// A reference as an operator wrote it, before its upstream is looked up.
#[derive(Clone, Eq, PartialEq)]
pub struct Written {
    /// The scheme.
    pub scheme: Scheme,
    /// The path, literally.
    pub path: String,
    /// What is cut out.
    pub fragment: Option<Fragment>,
    /// The provider's options.
    pub options: BTreeMap<String, String>,
    /// The upstream that is asked for.
    pub via: Option<String>,
}

/// Why a reference cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BadReference {
    /// There is no scheme in it.
    #[error("a ref is SCHEME://PATH or SCHEME:TEXT")]
    NoScheme,
    /// Nobody knows the scheme.
    #[error("unknown scheme \"{0}\"")]
    UnknownScheme(String),
    /// Another build has it.
    #[error("scheme \"{0}\" is not built in")]
    NotBuiltIn(String),
    /// No upstream allows programs.
    #[error("exec is not enabled")]
    ExecDisabled,
    /// `allow_chaining` is not set.
    #[error("chaining is not enabled")]
    ChainingDisabled,
    /// `decode` is an option of clients.
    #[error("decoding is the consuming client's job: drop ?decode=")]
    Decode,
    /// More than one reference.
    #[error("chained refs are not supported")]
    Chained,
    /// `${`.
    #[error("variables are not supported")]
    Variables,
    /// A `#` in the options.
    #[error("fragment must come before '?'")]
    LateFragment,
    /// The fragment cannot be read.
    #[error("{0}")]
    Fragment(#[from] BadFragment),
    /// A secret in plain text.
    #[error("option \"{0}\" is a secret: put it into a file that the upstream names")]
    SecretOption(String),
    /// The provider does not know it.
    #[error("unknown option \"{0}\" of scheme \"{1}\"")]
    UnknownOption(String, &'static str),
    /// Set twice.
    #[error("option \"{0}\" is given twice")]
    TwiceOption(String),
    /// Its text does not fit.
    #[error("option \"{0}\" must be {1}")]
    BadOption(String, &'static str),
    /// It is no text once decoded.
    #[error("bad percent-encoding in the options")]
    BadEncoding,
    /// The path does not have the form that the scheme wants.
    #[error("bad path: {0}")]
    BadPath(&'static str),
    /// Not below a root.
    #[error("{path} is outside upstream.{upstream}.roots")]
    OutsideRoots {
        /// The path.
        path: String,
        /// The upstream.
        upstream: String,
    },
    /// Not in the list.
    #[error("{what} is not in upstream.{upstream}.allow")]
    NotAllowed {
        /// The variable or the program.
        what: String,
        /// The upstream.
        upstream: String,
    },
    /// Nobody answers the scheme.
    #[error("no upstream of type \"{0}\"")]
    NoUpstream(&'static str),
    /// Several answer it.
    #[error("several upstreams of type \"{0}\": name one with ?via=")]
    Ambiguous(&'static str),
    /// The one that is named is none.
    #[error("no upstream \"{0}\"")]
    UnknownUpstream(String),
    /// The one that is named is of another type.
    #[error("upstream \"{0}\" is not of type \"{1}\"")]
    WrongUpstream(String, &'static str),
}

impl Written {
    /// Reads a reference: the scheme to the first `:`, one leading `//` dropped, the options from the first `?`, the
    /// fragment from the first `#` of what is left.
    ///
    /// # Errors
    /// The first thing that is refused.
    pub fn parse(text: &str) -> Result<Self, BadReference> {
        let text = text.trim();
        if text.contains("${") {
            return Err(BadReference::Variables);
        }
        if is_chain(text) {
            return Err(BadReference::Chained);
        }
        let (scheme, rest) = text.split_once(':').ok_or(BadReference::NoScheme)?;
        let name = scheme.to_ascii_lowercase();
        let scheme = Scheme::of(&name).ok_or_else(|| BadReference::UnknownScheme(name.clone()))?;
        if !scheme.is_built_in() {
            return Err(BadReference::NotBuiltIn(name));
        }
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        if query.contains('#') {
            return Err(BadReference::LateFragment);
        }
        let (path, fragment) = match rest.split_once('#') {
            Some((path, fragment)) => (path, Some(Fragment::parse(fragment)?)),
            None => (rest, None),
        };
        let mut options = options(query)?;
        options.remove("optional");
        let via = if takes_via(scheme) { options.remove("via") } else { None };
        check_options(scheme, &options)?;
        check_path(scheme, path)?;
        Ok(Self { scheme, path: path.to_owned(), fragment, options, via })
    }

    /// Looks the upstream up, and whether it allows the path.
    ///
    /// # Errors
    /// When there is no such upstream, or it does not allow the path.
    pub fn resolve(
        &self,
        upstreams: &Upstreams<'_>,
        allow_chaining: bool,
    ) -> Result<Reference, BadReference> {
        let kind = self.scheme.upstream();
        if self.scheme == Scheme::Holdfast && !allow_chaining {
            return Err(BadReference::ChainingDisabled);
        }
        let (upstream, path) = match (kind, self.path.split_once('/')) {
            (UpstreamKind::Static, _) => ("static".to_owned(), self.path.as_str()),
            (UpstreamKind::Http, Some((upstream, path))) => (upstreams.named(upstream, kind)?, path),
            (UpstreamKind::Http, None) => (upstreams.named(&self.path, kind)?, ""),
            _ => (upstreams.find(self.via.as_deref(), kind)?, self.path.as_str()),
        };
        if let Some(settings) = upstreams.settings(&upstream) {
            self.check_allowed(&upstream, settings)?;
        }
        let object =
            ObjectKey { upstream, scheme: self.scheme, path: path.to_owned(), options: self.options.clone() };
        Ok(Reference { object, fragment: self.fragment.clone() })
    }

    fn check_allowed(&self, upstream: &str, settings: &UpstreamSettings) -> Result<(), BadReference> {
        let not_allowed =
            |what: &str| BadReference::NotAllowed { what: what.to_owned(), upstream: upstream.to_owned() };
        match self.scheme {
            Scheme::File if !is_below_a_root(&self.path, settings) => {
                Err(BadReference::OutsideRoots { path: self.path.clone(), upstream: upstream.to_owned() })
            }
            Scheme::Env => {
                let is_it =
                    |glob: &String| Glob::new(glob).is_ok_and(|glob| glob.matches(self.path.as_bytes()));
                if settings.allow.iter().any(is_it) { Ok(()) } else { Err(not_allowed(&self.path)) }
            }
            Scheme::Exec if !settings.enabled => Err(BadReference::ExecDisabled),
            Scheme::Exec => {
                let program = exec::split(&self.path).ok().and_then(|words| words.into_iter().next());
                let program = program.unwrap_or_default();
                if settings.allow.contains(&program) { Ok(()) } else { Err(not_allowed(&program)) }
            }
            _ => Ok(()),
        }
    }

    /// What it says in a form that does not depend on how it was spelt.
    pub fn canonical(&self) -> Canonical {
        let options = self.options.iter().map(|(key, text)| (key.as_str(), Canonical::from(text.as_str())));
        Canonical::object([
            ("scheme", self.scheme.name().into()),
            ("path", self.path.as_str().into()),
            ("fragment", self.fragment.as_ref().map(ToString::to_string).into()),
            ("options", Canonical::object(options)),
            ("via", self.via.clone().into()),
        ])
    }

    /// The digest of what it says.
    pub fn digest(&self) -> Digest {
        self.canonical().digest()
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let via = self.via.as_ref().map(|via| ("via", via.as_str()));
        let options = self.options.iter().map(|(key, text)| (key.as_str(), text.as_str()));
        write(f, self.scheme, &self.path, self.fragment.as_ref(), via.into_iter().chain(options))
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.object.write(f, self.fragment.as_ref())
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ObjectKey {
    fn write(&self, f: &mut fmt::Formatter<'_>, fragment: Option<&Fragment>) -> fmt::Result {
        let options = self.options.iter().map(|(key, text)| (key.as_str(), text.as_str()));
        match self.scheme {
            Scheme::Https => {
                write(f, self.scheme, &format!("{}/{}", self.upstream, self.path), fragment, options)
            }
            Scheme::Static => write(f, self.scheme, &self.path, fragment, options),
            _ => {
                let via = std::iter::once(("via", self.upstream.as_str()));
                write(f, self.scheme, &self.path, fragment, via.chain(options))
            }
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, None)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn write<'a>(
    f: &mut fmt::Formatter<'_>,
    scheme: Scheme,
    path: &str,
    fragment: Option<&Fragment>,
    options: impl Iterator<Item = (&'a str, &'a str)>,
) -> fmt::Result {
    let slashes = if scheme.is_opaque() { "" } else { "//" };
    write!(f, "{}:{slashes}{path}", scheme.name())?;
    if let Some(fragment) = fragment {
        write!(f, "#{fragment}")?;
    }
    for (index, (key, text)) in options.enumerate() {
        let lead = if index == 0 { '?' } else { '&' };
        let text = if is_secret(key) { HIDDEN } else { text };
        write!(f, "{lead}{key}={text}")?;
    }
    Ok(())
}

/// The upstreams that references may name.
pub struct Upstreams<'a> {
    by_name: &'a BTreeMap<String, UpstreamSettings>,
}

impl<'a> Upstreams<'a> {
    /// Those of a configuration.
    pub const fn new(by_name: &'a BTreeMap<String, UpstreamSettings>) -> Self {
        Self { by_name }
    }

    fn settings(&self, name: &str) -> Option<&'a UpstreamSettings> {
        self.by_name.get(name)
    }

    fn named(&self, name: &str, kind: UpstreamKind) -> Result<String, BadReference> {
        let settings = self.settings(name).ok_or_else(|| BadReference::UnknownUpstream(name.to_owned()))?;
        if UpstreamKind::of(&settings.kind) == Some(kind) {
            Ok(name.to_owned())
        } else {
            Err(BadReference::WrongUpstream(name.to_owned(), kind.name()))
        }
    }

    fn find(&self, via: Option<&str>, kind: UpstreamKind) -> Result<String, BadReference> {
        if let Some(via) = via {
            return self.named(via, kind);
        }
        let is_of_kind = |(_, settings): &(&String, &UpstreamSettings)| settings.kind == kind.name();
        let mut found = self.by_name.iter().filter(is_of_kind).map(|(name, _)| name);
        match (found.next(), found.next()) {
            (Some(name), None) => Ok(name.clone()),
            (None, _) if kind == UpstreamKind::Exec => Err(BadReference::ExecDisabled),
            (None, _) => Err(BadReference::NoUpstream(kind.name())),
            (Some(_), Some(_)) => Err(BadReference::Ambiguous(kind.name())),
        }
    }
}

/// Shows the text of a reference that may not even be one, without the values of options that are secrets.
pub fn redact(text: &str) -> String {
    let Some((before, query)) = text.split_once('?') else { return text.to_owned() };
    let option = |option: &str| match option.split_once('=') {
        Some((key, _)) if is_secret(&percent_decode_str(key).decode_utf8_lossy()) => {
            format!("{key}={HIDDEN}")
        }
        _ => option.to_owned(),
    };
    let options: Vec<_> = query.split('&').map(option).collect();
    format!("{before}?{}", options.join("&"))
}

fn is_secret(key: &str) -> bool {
    SECRETS.iter().any(|secret| key.trim().eq_ignore_ascii_case(secret))
}

/// Whether a `,` is followed by another reference.
fn is_chain(text: &str) -> bool {
    text.split(',').skip(1).any(|piece| {
        let Some((scheme, rest)) = piece.trim_start().split_once(':') else { return false };
        let mut letters = scheme.bytes();
        let well_formed = letters.next().is_some_and(|byte| byte.is_ascii_alphabetic())
            && letters.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        well_formed && (rest.starts_with("//") || Scheme::of(&scheme.to_ascii_lowercase()).is_some())
    })
}

fn options(query: &str) -> Result<BTreeMap<String, String>, BadReference> {
    let decode = |text: &str| {
        let text = percent_decode_str(text).decode_utf8().map_err(|_| BadReference::BadEncoding)?;
        Ok::<_, BadReference>(text.into_owned())
    };
    let mut options = BTreeMap::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (key, text) = option.split_once('=').unwrap_or((option, ""));
        let key = decode(key)?;
        if key.eq_ignore_ascii_case("decode") {
            return Err(BadReference::Decode);
        }
        if is_secret(&key) {
            return Err(BadReference::SecretOption(key));
        }
        if options.insert(key.clone(), decode(text)?).is_some() {
            return Err(BadReference::TwiceOption(key));
        }
    }
    Ok(options)
}

const fn takes_via(scheme: Scheme) -> bool {
    !matches!(scheme, Scheme::Static | Scheme::Https)
}

/// The options that a scheme's provider knows; none when it takes any.
const fn known_options(scheme: Scheme) -> Option<&'static [&'static str]> {
    match scheme {
        Scheme::File => Some(&["debounce"]),
        Scheme::Vault | Scheme::Hub => Some(&["renew"]),
        Scheme::Postgres => Some(&["key_col", "val_col", "order_col"]),
        // They become the query of the URL, or are the script's business.
        Scheme::Https | Scheme::Test => None,
        _ => Some(&[]),
    }
}

fn check_options(scheme: Scheme, options: &BTreeMap<String, String>) -> Result<(), BadReference> {
    for (key, text) in options {
        let unknown = known_options(scheme).is_some_and(|known| !known.contains(&key.as_str()));
        if unknown || (key == "via" && scheme == Scheme::Https) {
            return Err(BadReference::UnknownOption(key.clone(), scheme.name()));
        }
        let bad = |what| Err(BadReference::BadOption(key.clone(), what));
        match (scheme, key.as_str()) {
            (Scheme::File, "debounce") if text.parse::<holdfast_ops::Duration>().is_err() => {
                return bad("a duration such as 20ms");
            }
            (Scheme::Vault | Scheme::Hub, "renew") if !matches!(text.as_str(), "true" | "false") => {
                return bad("true or false");
            }
            (Scheme::Postgres, _) if !is_identifier(text) => return bad("a column's name"),
            _ => {}
        }
    }
    Ok(())
}

fn check_path(scheme: Scheme, path: &str) -> Result<(), BadReference> {
    let ok = match scheme {
        Scheme::Static => true,
        Scheme::Env => !path.is_empty() && !path.contains(['=', '\0']),
        Scheme::Exec => match exec::split(path) {
            Ok(_) => true,
            Err(exec::BadCommand::Unterminated) => {
                return Err(BadReference::BadPath("a quote is not closed"));
            }
            Err(exec::BadCommand::Empty) => return Err(BadReference::BadPath("there is no program")),
        },
        Scheme::Https => return check_url_path(path),
        Scheme::K8sSecret | Scheme::K8sCm => {
            let parts: Vec<_> = path.split('/').collect();
            if parts.len() != 2 || parts.iter().any(|part| part.is_empty()) {
                return Err(BadReference::BadPath("it must be NAMESPACE/NAME"));
            }
            true
        }
        Scheme::Vault | Scheme::Hub => {
            let (mount, rest) = path.split_once('/').unwrap_or_default();
            if mount.is_empty() || rest.is_empty() || has_parent(path) {
                return Err(BadReference::BadPath("it must be MOUNT/PATH"));
            }
            true
        }
        Scheme::Postgres => {
            let (table, key) = path.split_once('/').unwrap_or_default();
            let mut names = table.splitn(2, '.');
            if key.is_empty() || !names.all(is_identifier) {
                return Err(BadReference::BadPath("it must be TABLE/KEY or SCHEMA.TABLE/KEY"));
            }
            true
        }
        Scheme::Holdfast if !name::is_name(path) => {
            return Err(BadReference::BadPath("it must be the name of a binding"));
        }
        _ => !path.is_empty(),
    };
    if ok { Ok(()) } else { Err(BadReference::BadPath("there is none")) }
}

/// No segment may lead up, also when it is spelt in percent-encoding.
fn check_url_path(path: &str) -> Result<(), BadReference> {
    let decoded =
        percent_decode_str(path).decode_utf8().map_err(|_| BadReference::BadPath("it is not UTF-8"))?;
    if decoded.split(['/', '\\']).any(|segment| segment == "..") {
        return Err(BadReference::BadPath("'..' is refused"));
    }
    if path.is_empty() || path.starts_with('/') {
        return Err(BadReference::BadPath("it must be UPSTREAM/PATH"));
    }
    Ok(())
}

fn has_parent(path: &str) -> bool {
    path.split('/').any(|segment| segment == "..")
}

/// `[A-Za-z_][A-Za-z0-9_]{0,62}`
fn is_identifier(text: &str) -> bool {
    let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    let may = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    starts_well && text.len() <= 63 && text.bytes().all(may)
}

/// Whether a path stays below a root, judged by its text; what links do is judged when it is read.
fn is_below_a_root(path: &str, settings: &UpstreamSettings) -> bool {
    if has_parent(path) || path.contains('\0') {
        return false;
    }
    !path.starts_with('/') || settings.roots.iter().any(|root| std::path::Path::new(path).starts_with(root))
}

#[cfg(test)]
mod tests;

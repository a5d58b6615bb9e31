//! The schemes of references and the types of upstreams that answer them.

/// A way to name a value.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Scheme {
    /// A file or a directory.
    File,
    /// An environment variable of the server.
    Env,
    /// The output of a program.
    Exec,
    /// The text of the reference itself.
    Static,
    /// An HTTP server.
    Https,
    /// A Vault or OpenBao server.
    Vault,
    /// Our hub.
    Hub,
    /// A Kubernetes Secret.
    K8sSecret,
    /// A Kubernetes ConfigMap.
    K8sCm,
    /// etcd.
    Etcd,
    /// Consul's key-value store.
    Consul,
    /// AWS Secrets Manager.
    AwsSm,
    /// AWS Systems Manager's parameter store.
    AwsPs,
    /// A table of a PostgreSQL.
    Postgres,
    /// Redis.
    Redis,
    /// Another config server; `mamori` is the same.
    Holdfast,
    /// Scripted, for tests.
    Test,
}

/// What kind of backend an upstream is, `upstream.NAME.type`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum UpstreamKind {
    /// Files below some directories.
    File,
    /// Environment variables.
    Env,
    /// Programs.
    Exec,
    /// The texts of references themselves; it is always there, under the name `static`.
    Static,
    /// An HTTP server.
    Http,
    /// Vault or OpenBao.
    Vault,
    /// Our hub.
    Hub,
    /// Kubernetes.
    Kube,
    /// etcd.
    Etcd,
    /// Consul.
    Consul,
    /// AWS.
    Aws,
    /// PostgreSQL.
    Postgres,
    /// Redis.
    Redis,
    /// Another config server.
    Holdfast,
    /// Scripted, for tests.
    Test,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::File,
        Self::Env,
        Self::Exec,
        Self::Static,
        Self::Https,
        Self::Vault,
        Self::Hub,
        Self::K8sSecret,
        Self::K8sCm,
        Self::Etcd,
        Self::Consul,
        Self::AwsSm,
        Self::AwsPs,
        Self::Postgres,
        Self::Redis,
        Self::Holdfast,
        Self::Test,
    ];

    /// Its name in references and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Env => "env",
            Self::Exec => "exec",
            Self::Static => "static",
            Self::Https => "https",
            Self::Vault => "vault",
            Self::Hub => "hub",
            Self::K8sSecret => "k8s-secret",
            Self::K8sCm => "k8s-cm",
            Self::Etcd => "etcd",
            Self::Consul => "consul",
            Self::AwsSm => "aws-sm",
            Self::AwsPs => "aws-ps",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Holdfast => "holdfast",
            Self::Test => "test",
        }
    }

    /// The scheme of a name in lower case; `mamori` is an alias of `holdfast`.
    pub fn of(name: &str) -> Option<Self> {
        let name = if name == "mamori" { "holdfast" } else { name };
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }

    /// Whether this build can answer it.
    pub const fn is_built_in(self) -> bool {
        self.upstream().is_built_in()
    }

    /// Whether its references have no `//` after the colon.
    pub const fn is_opaque(self) -> bool {
        matches!(self, Self::Env | Self::Exec | Self::Static)
    }

    /// The type of upstream that answers it.
    pub const fn upstream(self) -> UpstreamKind {
        match self {
            Self::File => UpstreamKind::File,
            Self::Env => UpstreamKind::Env,
            Self::Exec => UpstreamKind::Exec,
            Self::Static => UpstreamKind::Static,
            Self::Https => UpstreamKind::Http,
            Self::Vault => UpstreamKind::Vault,
            Self::Hub => UpstreamKind::Hub,
            Self::K8sSecret | Self::K8sCm => UpstreamKind::Kube,
            Self::Etcd => UpstreamKind::Etcd,
            Self::Consul => UpstreamKind::Consul,
            Self::AwsSm | Self::AwsPs => UpstreamKind::Aws,
            Self::Postgres => UpstreamKind::Postgres,
            Self::Redis => UpstreamKind::Redis,
            Self::Holdfast => UpstreamKind::Holdfast,
            Self::Test => UpstreamKind::Test,
        }
    }
}

impl UpstreamKind {
    /// Those that an operator can declare.
    pub const DECLARABLE: [Self; 14] = [
        Self::File,
        Self::Env,
        Self::Exec,
        Self::Http,
        Self::Vault,
        Self::Hub,
        Self::Kube,
        Self::Etcd,
        Self::Consul,
        Self::Aws,
        Self::Postgres,
        Self::Redis,
        Self::Holdfast,
        Self::Test,
    ];

    /// Its name in `upstream.NAME.type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Env => "env",
            Self::Exec => "exec",
            Self::Static => "static",
            Self::Http => "http",
            Self::Vault => "vault",
            Self::Hub => "hub",
            Self::Kube => "kube",
            Self::Etcd => "etcd",
            Self::Consul => "consul",
            Self::Aws => "aws",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Holdfast => "holdfast",
            Self::Test => "test",
        }
    }

    /// The declarable type of a name.
    pub fn of(name: &str) -> Option<Self> {
        Self::DECLARABLE.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether this build has a provider for it.
    pub const fn is_built_in(self) -> bool {
        let scripted = cfg!(feature = "test-upstream");
        !matches!(self, Self::Aws) && (scripted || !matches!(self, Self::Test))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_what_they_name() {
        for scheme in Scheme::ALL {
            assert_eq!(Scheme::of(scheme.name()), Some(scheme));
        }
        for kind in UpstreamKind::DECLARABLE {
            assert_eq!(UpstreamKind::of(kind.name()), Some(kind));
        }
        assert_eq!(Scheme::of("mamori"), Some(Scheme::Holdfast));
        assert_eq!(Scheme::of("s3"), None);
        assert_eq!(UpstreamKind::of("static"), None, "it is there without being declared");
    }
}

//! Policies that are always there.

/// Everything; it has no text and cannot be changed.
pub const ROOT: &str = "root";
/// What every token may do with itself; its text can be edited.
pub const DEFAULT: &str = "default";
/// What a wrapping token may do; not shown in lists, cannot be changed.
pub const WRAPPING: &str = "response-wrapping";

/// The first text of `default`.
pub const DEFAULT_TEXT: &str = r#"# A token may look at itself, renew itself and give itself up.
path "auth/token/lookup-self" {
  capabilities = ["read", "update"]
}
path "auth/token/renew-self" {
  capabilities = ["update"]
}
path "auth/token/revoke-self" {
  capabilities = ["update"]
}

# It may ask what it may do, and which mounts it can use.
path "sys/capabilities-self" {
  capabilities = ["update"]
}
path "sys/internal/ui/mounts" {
  capabilities = ["read"]
}
path "sys/internal/ui/mounts/*" {
  capabilities = ["read"]
}

# It may renew and look up leases whose id it knows.
path "sys/renew" {
  capabilities = ["update"]
}
path "sys/renew/*" {
  capabilities = ["update"]
}
path "sys/leases/renew" {
  capabilities = ["update"]
}
path "sys/leases/renew/*" {
  capabilities = ["update"]
}
path "sys/leases/lookup" {
  capabilities = ["update"]
}

# It has a place of its own.
path "cubbyhole/*" {
  capabilities = ["create", "read", "update", "delete", "list"]
}

# It may wrap, and use what was wrapped for it.
path "sys/wrapping/wrap" {
  capabilities = ["update"]
}
path "sys/wrapping/lookup" {
  capabilities = ["read", "update"]
}
path "sys/wrapping/unwrap" {
  capabilities = ["update"]
}
"#;

/// The text of `response-wrapping`.
pub const WRAPPING_TEXT: &str = r#"path "sys/wrapping/unwrap" {
  capabilities = ["update"]
}
"#;

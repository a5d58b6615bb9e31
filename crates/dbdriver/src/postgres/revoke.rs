//! Removes a role: ends its sessions if wished, takes back what it was granted, and drops it.
//!
//! Nothing that the role owns is ever dropped with it; what it owns makes the removal fail with a text that names it.

use crate::driver::{Call, DeleteUser};
use crate::error::{DriverError, Reason};
use crate::statement::{Dialect, Statements, Values};

use super::contention::Contention;
use super::{PostgresDriver, errors};

const EXISTS: &str = "SELECT rolname::text FROM pg_catalog.pg_roles WHERE rolname = $1";

const TERMINATE: &str = "SELECT pg_catalog.pg_terminate_backend(pid)::text FROM pg_catalog.pg_stat_activity \
     WHERE usename = $1 AND pid <> pg_catalog.pg_backend_pid()";

/// One `REVOKE` per schema and sort of object on which the role was granted anything in this database, and one per
/// object outside schemas. The catalogue of dependencies knows them all, whoever granted them.
const REVOKES: &str = r"
WITH role AS (
  SELECT oid, rolname FROM pg_catalog.pg_roles WHERE rolname = $1
), granted AS (
  SELECT DISTINCT s.classid, s.objid, role.rolname
  FROM pg_catalog.pg_shdepend s JOIN role ON s.refobjid = role.oid
  WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.deptype = 'a'
    AND s.dbid IN (0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))
), objects AS (
  SELECT CASE WHEN c.relkind = 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS sort, n.nspname AS grouping,
         format('%I.%I', n.nspname, c.relname) AS object, g.rolname
  FROM granted g JOIN pg_catalog.pg_class c ON g.classid = 'pg_catalog.pg_class'::regclass AND c.oid = g.objid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  UNION ALL
  SELECT 'ROUTINE', n.nspname,
         format('%I.%I(%s)', n.nspname, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)), g.rolname
  FROM granted g JOIN pg_catalog.pg_proc p ON g.classid = 'pg_catalog.pg_proc'::regclass AND p.oid = g.objid
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  UNION ALL
  SELECT 'TYPE', n.nspname, format('%I.%I', n.nspname, t.typname), g.rolname
  FROM granted g JOIN pg_catalog.pg_type t ON g.classid = 'pg_catalog.pg_type'::regclass AND t.oid = g.objid
    JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
  UNION ALL
  SELECT 'SCHEMA', NULL, format('%I', n.nspname), g.rolname
  FROM granted g JOIN pg_catalog.pg_namespace n
    ON g.classid = 'pg_catalog.pg_namespace'::regclass AND n.oid = g.objid
  UNION ALL
  SELECT 'DATABASE', NULL, format('%I', d.datname), g.rolname
  FROM granted g JOIN pg_catalog.pg_database d
    ON g.classid = 'pg_catalog.pg_database'::regclass AND d.oid = g.objid
  UNION ALL
  SELECT 'TABLESPACE', NULL, format('%I', t.spcname), g.rolname
  FROM granted g JOIN pg_catalog.pg_tablespace t
    ON g.classid = 'pg_catalog.pg_tablespace'::regclass AND t.oid = g.objid
  UNION ALL
  SELECT 'LANGUAGE', NULL, format('%I', l.lanname), g.rolname
  FROM granted g JOIN pg_catalog.pg_language l
    ON g.classid = 'pg_catalog.pg_language'::regclass AND l.oid = g.objid
  UNION ALL
  SELECT 'FOREIGN SERVER', NULL, format('%I', f.srvname), g.rolname
  FROM granted g JOIN pg_catalog.pg_foreign_server f
    ON g.classid = 'pg_catalog.pg_foreign_server'::regclass AND f.oid = g.objid
  UNION ALL
  SELECT 'FOREIGN DATA WRAPPER', NULL, format('%I', f.fdwname), g.rolname
  FROM granted g JOIN pg_catalog.pg_foreign_data_wrapper f
    ON g.classid = 'pg_catalog.pg_foreign_data_wrapper'::regclass AND f.oid = g.objid
  UNION ALL
  SELECT 'LARGE OBJECT', NULL, g.objid::text, g.rolname
  FROM granted g WHERE g.classid = 'pg_catalog.pg_largeobject'::regclass
  UNION ALL
  SELECT 'PARAMETER', NULL, (pg_catalog.pg_identify_object(g.classid, g.objid, 0)).identity, g.rolname
  FROM granted g WHERE g.classid = pg_catalog.to_regclass('pg_catalog.pg_parameter_acl')
)
SELECT format('REVOKE ALL ON %s %s FROM %I CASCADE', sort, string_agg(object, ', '), rolname)
FROM objects GROUP BY sort, grouping, rolname
UNION ALL
SELECT format('ALTER DEFAULT PRIVILEGES FOR ROLE %I %s REVOKE ALL ON %s FROM %I',
  pg_catalog.pg_get_userbyid(a.defaclrole), CASE WHEN n.oid IS NULL THEN '' ELSE format('IN SCHEMA %I', n.nspname) END,
  CASE a.defaclobjtype WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'ROUTINES'
    WHEN 'T' THEN 'TYPES' ELSE 'SCHEMAS' END, g.rolname)
FROM granted g JOIN pg_catalog.pg_default_acl a
  ON g.classid = 'pg_catalog.pg_default_acl'::regclass AND a.oid = g.objid
  LEFT JOIN pg_catalog.pg_namespace n ON n.oid = a.defaclnamespace";

impl PostgresDriver {
    pub(super) async fn revoke(&self, call: &Call, user: &DeleteUser) -> Result<(), DriverError> {
        let own = Statements::parse(&user.statements, Dialect::Postgres)?;
        let kind = Contention::key(&user.statements);
        if user.terminate_sessions && self.exists(call, &user.username).await? {
            self.end_sessions(call, &user.username).await?;
        }
        let done = if own.is_empty() {
            let mut statements = self.texts(call, REVOKES, &[&user.username]).await?;
            statements.push(format!("DROP ROLE IF EXISTS {}", identifier(&user.username)));
            self.transaction(call, &statements, kind).await
        } else {
            let values = Values { username: &user.username, password: None, expiration: None };
            self.transaction(call, &own.render(&values), kind).await
        };
        match done {
            // Whoever removed the role first did what was asked; statements that name it fail then.
            Err(e) if is_about_objects(&e) && !self.exists(call, &user.username).await? => Ok(()),
            other => other.map_err(|e| errors::about_user(e, &user.username)),
        }
    }

    async fn exists(&self, call: &Call, username: &str) -> Result<bool, DriverError> {
        Ok(!self.texts(call, EXISTS, &[username]).await?.is_empty())
    }

    /// The role loses its login first, so that no session can come back.
    async fn end_sessions(&self, call: &Call, username: &str) -> Result<(), DriverError> {
        let no_login = [format!("ALTER ROLE {} NOLOGIN", identifier(username))];
        match self.transaction(call, &no_login, Contention::key(&[])).await {
            Err(e) if errors::about_user(e.clone(), username).reason() == Reason::Missing => return Ok(()),
            other => other?,
        }
        self.texts(call, TERMINATE, &[username]).await.map(drop)
    }
}

fn is_about_objects(error: &DriverError) -> bool {
    error.is_definite() && matches!(error.reason(), Reason::Statement | Reason::Missing)
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

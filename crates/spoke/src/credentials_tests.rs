//! Files that belong together, files that do not, and what a crash leaves behind.

use std::os::unix::fs::PermissionsExt as _;

use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa, Issuer};
use tempfile::TempDir;

use super::*;

/// An authority like the hub's.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "holdfast-spoke-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Key and certificate of a spoke.
    fn pair(&self, name: &str) -> (String, String) {
        let request = KeyRequest::new(&name.parse().unwrap()).unwrap();
        let mut csr = rcgen::CertificateSigningRequestParams::from_pem(&request.csr_pem).unwrap();
        assert!(csr.params.subject_alt_names.is_empty() && csr.params.key_usages.is_empty());
        csr.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (request.key_pem.to_string(), csr.signed_by(&self.issuer).unwrap().pem())
    }
}

fn created(authority: &Authority) -> (TempDir, Credentials, (String, String)) {
    let dir = TempDir::new().unwrap();
    let (key, cert) = authority.pair("spoke-1");
    let made = Credentials::create(&dir.path().join("spoke"), &key, &cert, &authority.pem).unwrap();
    (dir, made, (key, cert))
}

fn text(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap()
}

#[test]
fn only_the_directory_itself_is_made_private() {
    let dir = tempfile::tempdir().unwrap();
    let spoke = dir.path().join("etc/holdfast/spoke");
    prepare(&spoke).unwrap();
    let others = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o077;
    assert_eq!(others(&spoke), 0);
    // As much of 0755 as the umask leaves.
    let probe = dir.path().join("probe");
    std::fs::DirBuilder::new().mode(0o755).create(&probe).unwrap();
    for above in [spoke.parent().unwrap(), spoke.parent().unwrap().parent().unwrap()] {
        assert_eq!(others(above), others(&probe), "{above:?}");
    }
    prepare(&spoke).unwrap();
}

#[test]
fn what_is_created_is_read_again_and_private() {
    let authority = Authority::new();
    let (_dir, made, _) = created(&authority);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(made.dir()), 0o700);
    let modes: Vec<u32> = [KEY, CERT, CA].iter().map(|name| mode(&made.dir().join(name))).collect();
    assert_eq!(modes, [0o600, 0o644, 0o644]);
    let read = Credentials::load(made.dir()).unwrap();
    assert_eq!((read.name.as_str(), read.not_after), ("spoke-1", made.not_after));
    read.client_config().unwrap();
    assert_eq!(std::fs::read_dir(made.dir()).unwrap().count(), 3, "nothing else is left");
    assert_eq!(occupied(made.dir()), Some(made.dir().join(KEY)));
    assert_eq!(occupied(&made.dir().join("none")), None);
    assert!(!format!("{made:?}").contains("PRIVATE"));
}

#[test]
fn what_is_missing_or_does_not_fit_is_named() {
    let authority = Authority::new();
    let (other_key, other_cert) = authority.pair("spoke-1");
    let stranger = Authority::new();
    for (name, content, expected) in [
        (KEY, None, "key.pem"),
        (CERT, None, "cert.pem"),
        (CA, None, "ca.pem"),
        (KEY, Some("nothing"), "key.pem holds no usable key"),
        (CERT, Some("nothing"), "cert.pem holds no usable certificate"),
        (KEY, Some(other_key.as_str()), "key.pem is not the key of the certificate"),
        (CERT, Some(other_cert.as_str()), "key.pem is not the key of the certificate"),
        (CA, Some(stranger.pem.as_str()), "cert.pem does not chain to"),
    ] {
        let (_dir, made, _) = created(&authority);
        let path = made.dir().join(name);
        match content {
            None => std::fs::remove_file(&path).unwrap(),
            Some(text) => std::fs::write(&path, text).unwrap(),
        }
        let error = Credentials::load(made.dir()).unwrap_err();
        assert!(error.to_string().contains(expected), "{name}: {error}");
    }
}

#[test]
fn a_half_replaced_pair_is_completed() {
    let authority = Authority::new();
    let (key, cert) = authority.pair("spoke-1");
    // The crash came before the certificate, between the two, and after the key.
    for done in 0..=2 {
        let (_dir, made, old) = created(&authority);
        let dir = made.dir();
        write_new(dir, KEY, &key, 0o600).unwrap();
        write_new(dir, CERT, &cert, 0o644).unwrap();
        for name in [CERT, KEY].iter().take(done) {
            put_in_place(dir, name).unwrap();
        }
        Credentials::load(dir).unwrap();
        let expected =
            if done == 0 { (old.0.as_str(), old.1.as_str()) } else { (key.as_str(), cert.as_str()) };
        assert_eq!((text(dir, KEY).as_str(), text(dir, CERT).as_str()), expected, "{done}");
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 3, "{done}");
        Credentials::load(dir).unwrap();
    }
}

#[test]
fn a_half_replaced_set_of_another_authority_is_completed() {
    let (authority, next) = (Authority::new(), Authority::new());
    let (key, cert) = next.pair("spoke-1");
    // The crash came behind the authority, behind the certificate, and behind the key.
    for done in 1..=3 {
        let (_dir, made, _) = created(&authority);
        let dir = made.dir();
        write_new(dir, KEY, &key, 0o600).unwrap();
        write_new(dir, CERT, &cert, 0o644).unwrap();
        write_new(dir, CA, &next.pem, 0o644).unwrap();
        for name in [CA, CERT, KEY].iter().take(done) {
            put_in_place(dir, name).unwrap();
        }
        Credentials::load(dir).unwrap();
        assert_eq!((text(dir, KEY).as_str(), text(dir, CERT).as_str()), (key.as_str(), cert.as_str()));
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 3, "{done}");
    }
}

#[test]
fn what_waits_is_kept_while_the_set_is_not_good() {
    let authority = Authority::new();
    let (_dir, made, _) = created(&authority);
    let (key, cert) = authority.pair("spoke-1");
    let dir = made.dir();
    write_new(dir, KEY, &key, 0o600).unwrap();
    write_new(dir, CERT, &cert, 0o644).unwrap();
    std::fs::remove_file(dir.join(CA)).unwrap();
    std::fs::remove_file(dir.join(KEY)).unwrap();
    Credentials::load(dir).unwrap_err();
    assert_eq!(text(dir, "key.pem.new"), key);
    // With the authority back it is completed.
    std::fs::write(dir.join(CA), &authority.pem).unwrap();
    Credentials::load(dir).unwrap();
    assert_eq!((text(dir, KEY), text(dir, CERT)), (key, cert));
}

#[test]
fn a_renewal_does_not_overwrite_the_only_key_of_another_one_that_was_killed() {
    let authority = Authority::new();
    let (_dir, made, _) = created(&authority);
    let (killed, next) = (authority.pair("spoke-1"), authority.pair("spoke-1"));
    let dir = made.dir();
    write_new(dir, KEY, &killed.0, 0o600).unwrap();
    std::fs::write(dir.join(CERT), &killed.1).unwrap();
    // This one fails at its certificate: a directory is in the way.
    std::fs::create_dir(dir.join("cert.pem.new")).unwrap();
    made.replace(&next.0, &next.1).unwrap_err();
    assert_eq!((text(dir, KEY), text(dir, CERT)), killed);
}

#[test]
fn replacing_and_reading_at_once_never_meet_a_set_that_does_not_fit() {
    let authority = Authority::new();
    let (_dir, made, _) = created(&authority);
    let pairs: Vec<_> = (0..40).map(|_| authority.pair("spoke-1")).collect();
    std::thread::scope(|scope| {
        for half in pairs.chunks(20) {
            let made = &made;
            scope.spawn(move || half.iter().for_each(|(key, cert)| drop(made.replace(key, cert).unwrap())));
        }
        for _ in 0..50 {
            Credentials::load(made.dir()).unwrap();
        }
    });
    let left = (text(made.dir(), KEY), text(made.dir(), CERT));
    assert!(pairs.contains(&left), "one whole pair is in place");
    assert_eq!(std::fs::read_dir(made.dir()).unwrap().count(), 3);
}

#[test]
fn a_half_replaced_pair_without_its_key_is_refused() {
    let authority = Authority::new();
    let (_, cert) = authority.pair("spoke-1");
    let (wrong, _) = authority.pair("spoke-1");
    let (_dir, made, old) = created(&authority);
    std::fs::write(made.dir().join(CERT), &cert).unwrap();
    std::fs::write(made.dir().join("key.pem.new"), wrong).unwrap();
    assert!(matches!(Credentials::load(made.dir()), Err(CredentialsError::Mismatch { .. })));
    assert_eq!(text(made.dir(), KEY), old.0, "nothing was touched");
}

#[test]
fn a_renewal_takes_the_place_of_the_former_pair_only_if_it_fits() {
    let authority = Authority::new();
    let (_dir, made, old) = created(&authority);
    let (key, cert) = authority.pair("spoke-1");
    let (other, _) = authority.pair("spoke-1");
    let strange = Authority::new().pair("spoke-1");
    let renamed = authority.pair("spoke-2");
    for (key, cert) in [(&other, &cert), (&strange.0, &strange.1), (&renamed.0, &renamed.1)] {
        assert!(made.replace(key, cert).is_err());
        assert_eq!((text(made.dir(), KEY), text(made.dir(), CERT)), old);
    }
    made.replace(&key, &cert).unwrap();
    assert_eq!((text(made.dir(), KEY), text(made.dir(), CERT)), (key, cert));
    Credentials::load(made.dir()).unwrap();
}

#[test]
fn the_share_of_life_left_is_between_one_and_none() {
    let authority = Authority::new();
    let (_dir, mut made, _) = created(&authority);
    (made.not_before, made.not_after) = (1000, 2000);
    let left = [0, 1000, 1500, 2000, 9000].map(|now| made.life_left(now));
    assert_eq!(left, [1.0, 1.0, 0.5, 0.0, 0.0]);
}

#[test]
fn a_renewal_does_not_replace_another_spoke_that_was_made_meanwhile() {
    let (authority, next) = (Authority::new(), Authority::new());
    let renewed = authority.pair("spoke-1");
    for (new, name) in [(&authority, "spoke-2"), (&next, "spoke-1")] {
        let (_dir, made, _) = created(&authority);
        let (key, cert) = new.pair(name);
        Credentials::create(made.dir(), &key, &cert, &new.pem).unwrap();
        let error = made.replace(&renewed.0, &renewed.1).unwrap_err();
        assert!(error.to_string().contains("of this spoke any more"), "{error}");
        assert_eq!((text(made.dir(), KEY), text(made.dir(), CERT)), (key, cert));
        Credentials::load(made.dir()).unwrap();
    }
}

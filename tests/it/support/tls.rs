//! Certificates for tests of `rediss://`, made by a private authority that exists for one test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tempfile::TempDir;

/// A certificate authority and the servers' certificates that it has signed, as PEM files; removed
/// when dropped.
pub struct Certificates {
    ca: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

/// A server's certificate and key.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Certificates {
    /// A new authority, unlike every other.
    pub fn new() -> Certificates {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "distlock test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::Builder::new().prefix("distlock-tls-").tempdir().unwrap();
        let ca = dir.path().join("ca.pem");
        fs::write(&ca, issuer.pem()).unwrap();
        Certificates { ca, issuer, dir }
    }

    /// The authority's certificate, for clients that should trust it.
    pub fn ca(&self) -> &Path {
        &self.ca
    }

    /// The authority's certificate as PEM text.
    pub fn ca_pem(&self) -> String {
        self.issuer.pem()
    }

    /// Where the file of this name is.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// A valid certificate for `localhost` and `127.0.0.1`.
    pub fn good(&self) -> Certificate {
        self.issue("good", &["localhost", "127.0.0.1"], 4096)
    }

    /// A certificate for the same names that expired long ago.
    pub fn expired(&self) -> Certificate {
        self.issue("expired", &["localhost", "127.0.0.1"], 2001)
    }

    /// A valid certificate for another host.
    pub fn wrong_name(&self) -> Certificate {
        self.issue("wrong-name", &["elsewhere.example"], 4096)
    }

    /// A certificate for the same names that is valid for this long from now.
    pub fn valid_for(&self, time: Duration) -> Certificate {
        let mut params = params("short", &["localhost", "127.0.0.1"], 4096);
        params.not_after = (SystemTime::now() + time).into();
        let key = KeyPair::generate().unwrap();
        self.write("short", &params.signed_by(&key, &self.issuer).unwrap(), &key)
    }

    /// A valid certificate that its server has signed itself.
    pub fn self_signed(&self, is_ca: IsCa) -> Certificate {
        let mut params = params("self-signed", &["localhost"], 4096);
        params.is_ca = is_ca;
        let key = KeyPair::generate().unwrap();
        self.write("self-signed", &params.self_signed(&key).unwrap(), &key)
    }

    fn issue(&self, file: &str, names: &[&str], last_year: i32) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let cert = params(file, names, last_year).signed_by(&key, &self.issuer).unwrap();
        self.write(file, &cert, &key)
    }

    fn write(&self, file: &str, cert: &rcgen::Certificate, key: &KeyPair) -> Certificate {
        let path = |suffix| self.path(&format!("{file}.{suffix}"));
        let files = Certificate { cert: path("pem"), key: path("key") };
        fs::write(&files.cert, cert.pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

fn params(common_name: &str, names: &[&str], last_year: i32) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(last_year, 1, 1);
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

//! The certificate authorities that are trusted: the system's, and those of a file in addition.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

#[derive(Clone, Default, PartialEq, Eq)]
pub struct Roots(Vec<CertificateDer<'static>>);

impl Roots {
    /// The error says in words what is wrong with the file. The system's store may have certificates that
    /// cannot be used; they are left out.
    pub fn load(ca_file: Option<&Path>) -> Result<Roots, String> {
        let mut roots = Roots(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = ca_file {
            roots.add_file(path)?;
        }
        Ok(roots)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), String> {
        let wrong = |what: &dyn Display| format!("\"{}\": {what}", path.display());
        let mut file = File::open(path).map_err(|error| wrong(&error))?;
        // A user who writes the file decides whom we trust. Asked of the open file: the path may lead elsewhere by
        // then.
        let mode = file.metadata().map_err(|error| wrong(&error))?.mode();
        if mode & 0o002 != 0 {
            return Err(wrong(
                &"everybody may write the file; take that away with chmod o-w",
            ));
        }
        let mut pem = Vec::new();
        file.read_to_end(&mut pem).map_err(|error| wrong(&error))?;
        let known = self.0.len();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let number = self.0.len() - known + 1;
            let certificate = certificate
                .map_err(|_| wrong(&format!("certificate {number} is not valid PEM")))?;
            RootCertStore::empty()
                .add(certificate.clone())
                .map_err(|_| wrong(&format!("certificate {number} is not a valid one")))?;
            self.0.push(certificate);
        }
        match self.0.len() - known {
            0 => Err(wrong(&"the file contains no certificate in PEM format")),
            _ => Ok(()),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(certificate: &CertificateDer<'static>) -> Roots {
        Roots(vec![certificate.clone()])
    }

    /// TLS 1.2 and 1.3.
    pub(crate) fn connector(&self) -> TlsConnector {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(self.0.iter().cloned());
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers for each version")
            .with_root_certificates(store)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsConnector::from(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load(name: &str, content: &str) -> Result<usize, String> {
        let directory = std::env::temp_dir().join(format!("webhook-roots-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(name);
        fs::write(&path, content).unwrap();
        let mut roots = Roots::default();
        let loaded = roots.add_file(&path).map(|()| roots.0.len());
        fs::remove_file(&path).unwrap();
        loaded
    }

    fn certificate() -> String {
        let signed = rcgen::generate_simple_self_signed(["a.invalid".into()]).unwrap();
        signed.cert.pem()
    }

    #[test]
    fn every_certificate_of_the_file_is_trusted_in_addition() {
        let file = format!("# our own\n{}\n{}", certificate(), certificate());
        assert_eq!(load("two.pem", &file), Ok(2));
    }

    #[test]
    fn a_file_that_everybody_may_write_is_refused() {
        let path = std::env::temp_dir().join(format!("webhook-root-{}.pem", std::process::id()));
        fs::write(&path, certificate()).unwrap();
        let load = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Roots::default().add_file(&path)
        };
        let trusted = [0o600, 0o644, 0o664].map(load);
        let refused = [0o666, 0o646, 0o602].map(load);
        fs::remove_file(&path).unwrap();
        assert_eq!(trusted, [Ok(()), Ok(()), Ok(())]);
        for result in refused {
            let error = result.unwrap_err();
            assert!(error.ends_with("take that away with chmod o-w"), "{error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_refused_in_words() {
        let broken = "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n";
        let other = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        for (name, content, problem) in [
            (
                "empty.pem",
                String::new(),
                "the file contains no certificate",
            ),
            (
                "text.pem",
                "no certificate".into(),
                "the file contains no certificate",
            ),
            (
                "broken.pem",
                broken.into(),
                "certificate 1 is not valid PEM",
            ),
            (
                "other.pem",
                certificate() + other,
                "certificate 2 is not a valid one",
            ),
        ] {
            let error = load(name, &content).unwrap_err();
            assert!(error.contains(problem) && error.contains(name), "{error}");
        }
        let Err(error) = Roots::load(Some(Path::new("/nowhere/ca.pem"))) else {
            panic!("loaded a file that does not exist");
        };
        assert!(
            error.starts_with("\"/nowhere/ca.pem\": No such file"),
            "{error}"
        );
    }
}

//! Payload files for commands: readable by this user only, and removed when the command has ended.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use leasehold::model::ExecutionId;

/// Folder with access for this user only; removed when this process stops running executions.
pub(super) struct PayloadFolder(PathBuf);

/// Payload file; removed on drop.
pub(super) struct PayloadFile(PathBuf);

impl PayloadFolder {
    pub(super) fn new() -> io::Result<Self> {
        let path = nix::unistd::mkdtemp(&std::env::temp_dir().join("leasehold-XXXXXX"))?;
        Ok(Self(path))
    }

    /// Writes the payload of an execution to a new file.
    pub(super) fn put(&self, id: ExecutionId, payload: &[u8]) -> io::Result<PayloadFile> {
        let path = self.0.join(id.to_string());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let file_of = PayloadFile(path);
        file.write_all(payload)?;
        Ok(file_of)
    }
}

impl PayloadFile {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PayloadFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Drop for PayloadFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use leasehold::model::TaskId;

    use super::*;

    #[test]
    fn a_payload_file_is_private_and_removed_with_its_owner() {
        let folder = PayloadFolder::new().unwrap();
        let id = "00000000-0000-0000-0000-000000000005".parse::<TaskId>().unwrap().into();
        let file = folder.put(id, b"secret").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(file.path()), mode(&folder.0)), (0o600, 0o700));
        assert_eq!(fs::read(file.path()).unwrap(), b"secret");
        assert!(folder.put(id, b"other").is_err(), "one is there");
        let (file_path, folder_path) = (file.path().to_owned(), folder.0.clone());
        drop(file);
        assert!(!file_path.exists());
        drop(folder);
        assert!(!folder_path.exists());
    }
}

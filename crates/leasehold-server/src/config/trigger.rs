//! Settings of a trigger: `[triggers.ID]`.

use leasehold::model::Ttl;
use toml::Spanned;

use super::file::{ConfigError, SecretSource, TriggerPart};
use super::settings::Reader;
use crate::webhooks::{Filter, Scheme, Secret};
use crate::workflows::{OnLockedAction, REPLAY_MEMORY, TOLERANCE, Trigger, Workflow};

impl Reader<'_> {
    pub(super) fn trigger(
        &self,
        id: String,
        part: Spanned<TriggerPart>,
        workflows: &[Workflow],
    ) -> Result<Trigger, ConfigError> {
        let at = part.span();
        let mut part = part.into_inner();
        let workflow = self.find_workflow(&part.workflow, workflows)?;
        let scheme = part.scheme;
        match (scheme, part.secrets.first()) {
            (Scheme::None, Some(secret)) => {
                let message = "a trigger with scheme = \"none\" must not have secrets, because it verifies no signature";
                return Err(self.text.error(Some(secret.span()), message));
            }
            (Scheme::Github | Scheme::Stripe | Scheme::Standard, None) => {
                let message =
                    format!("trigger '{id}' has no secrets, which are required to verify signatures");
                let hint = "write: secrets = [\"env:NAME\"]";
                return Err(self.text.error_with_hint(Some(at), message, hint));
            }
            _ => {}
        }
        let filter = self.filter(&mut part)?;
        let replay_memory = self.replay_memory(&part)?;
        // GitHub does not redeliver rejected events, so a rejected event would be lost.
        let default = (scheme == Scheme::Github).then_some(OnLockedAction::Queue);
        let setting = part.on_locked.or(default);
        Ok(Trigger {
            id,
            on_locked: setting.map_or(workflow.on_locked, |setting| setting.resolve(workflow.queue_limit)),
            workflow: workflow.name.clone(),
            scheme,
            secrets: self.secrets(scheme, &part.secrets)?,
            filter,
            key: part.key,
            tolerance: part.tolerance.map_or(TOLERANCE, |tolerance| tolerance.0),
            replay_memory,
        })
    }

    fn secrets(&self, scheme: Scheme, sources: &[Spanned<SecretSource>]) -> Result<Vec<Secret>, ConfigError> {
        let secret = |source: &Spanned<SecretSource>| {
            let error = |message: String| self.text.error(Some(source.span()), message);
            let secret = source.get_ref().read(self.folder).map_err(error)?;
            Secret::new(scheme, &secret).map_err(|invalid| error(invalid.to_string()))
        };
        sources.iter().map(secret).collect()
    }

    fn filter(&self, part: &mut TriggerPart) -> Result<Filter, ConfigError> {
        if let Some(branches) = part.branches.as_ref().filter(|_| part.scheme != Scheme::Github) {
            let message = "branches requires scheme = \"github\"; use 'when' for other bodies";
            return Err(self.text.error(Some(branches.span()), message));
        }
        Ok(Filter {
            events: self.list(part.events.take())?,
            branches: self.list(part.branches.take())?,
            when: self.list(part.when.take())?,
        })
    }

    /// Rejects an empty list, because readers could take it for "nothing" or for "everything".
    fn list<T>(&self, list: Option<Spanned<Vec<T>>>) -> Result<Vec<T>, ConfigError> {
        let Some(list) = list else { return Ok(Vec::new()) };
        if list.get_ref().is_empty() {
            let message = "the list is empty; omit it to accept every event";
            return Err(self.text.error(Some(list.span()), message));
        }
        Ok(list.into_inner())
    }

    fn replay_memory(&self, part: &TriggerPart) -> Result<Option<Ttl>, ConfigError> {
        let Some(memory) = &part.replay_memory else { return Ok(Some(REPLAY_MEMORY)) };
        let has_signed_id = match part.scheme {
            Scheme::Github | Scheme::Stripe => return Ok(Ttl::new(memory.get_ref().0).ok()),
            Scheme::Standard => "the sender signs the id of each delivery, which is remembered for 30 days",
            Scheme::None => "nothing is signed",
        };
        Err(self.text.error(Some(memory.span()), format!("replay_memory does not apply: {has_signed_id}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::config::settings::tests::{BASE, parse, wrong};

    #[test]
    fn a_trigger_starts_a_workflow_of_the_file_and_has_what_its_scheme_needs() {
        let with = |rest: &str| wrong(&format!("{BASE}[triggers.push]\n{rest}"));
        for (rest, shown) in [
            ("workflow = \"other\"\nscheme = \"none\"", "line 4, 'workflow': there is no workflow 'other'"),
            (
                "workflow = \"deploy\"\nscheme = \"github\"",
                "line 3, [triggers.push]: trigger 'push' has no secrets",
            ),
            (
                "workflow = \"deploy\"\nscheme = \"none\"\nsecrets = [\"x\"]",
                "line 6, 'secrets': a trigger with",
            ),
            ("workflow = \"deploy\"\nscheme = \"rot13\"", "line 5, 'scheme': unknown variant"),
            ("workflow = \"deploy\"\nscheme = \"none\"\nkey = \"id\"", "line 6, 'key': invalid JSON pointer"),
            (
                "workflow = \"deploy\"\nscheme = \"github\"\nsecrets = [\"env:LEASEHOLD_NO_SUCH\"]",
                "line 6, 'secrets': the variable LEASEHOLD_NO_SUCH is not set",
            ),
            (
                "workflow = \"deploy\"\nscheme = \"github\"\nsecrets = [\"file:no-such-secret\"]",
                "line 6, 'secrets': the file /etc/no-such-secret cannot be read",
            ),
            (
                "workflow = \"deploy\"\nscheme = \"standard\"\nsecrets = [\"whsec_?\"]",
                "line 6, 'secrets': invalid secret of Standard Webhooks",
            ),
        ] {
            assert!(with(rest).contains(shown), "{rest}: {}", with(rest));
        }
        assert!(
            wrong(&format!("{BASE}[triggers.\"a b\"]\nworkflow = \"deploy\"\nscheme = \"none\""))
                .contains("part of a URL")
        );
    }

    #[test]
    fn a_filter_is_checked_with_the_file() {
        let github = "workflow = \"deploy\"\nscheme = \"github\"\nsecrets = [\"x\"]\n";
        let with = |head: &str, rest: &str| wrong(&format!("{BASE}[triggers.push]\n{head}{rest}"));
        for (rest, shown) in [
            ("events = []", "line 7, 'events': the list is empty"),
            ("branches = []", "line 7, 'branches': the list is empty"),
            ("when = []", "line 7, 'when': the list is empty"),
            ("events = \"push\"", "line 7, 'events': invalid type"),
            ("events = [\"pull_*quest\"]", "line 7, 'events': invalid pattern 'pull_*quest'"),
            ("branches = [\"main\", \"\"]", "line 7, 'branches': invalid pattern ''"),
            ("when = [\"$.a\", \"a == 1\"]", "line 7, 'when': invalid JSONPath query 'a == 1'"),
            // The error names the key even if the key is some lines above.
            ("when = [\n  \"$.a\",\n  \"$[?@.a == ]\",\n]", ", 'when': invalid JSONPath query '$[?@.a == ]'"),
            ("replay_memory = \"soon\"", "line 7, 'replay_memory':"),
        ] {
            assert!(with(github, rest).contains(shown), "{rest}: {}", with(github, rest));
        }
        let plain = "workflow = \"deploy\"\nscheme = \"none\"\n";
        for (rest, shown) in [
            ("branches = [\"main\"]", "line 6, 'branches': branches requires scheme = \"github\""),
            ("replay_memory = \"1h\"", "line 6, 'replay_memory': replay_memory does not apply"),
        ] {
            assert!(with(plain, rest).contains(shown), "{rest}: {}", with(plain, rest));
        }
    }

    #[test]
    fn a_signed_body_is_remembered_for_a_day_unless_the_file_says_otherwise() {
        let memory = |scheme: &str, rest: &str| {
            let head = format!("{BASE}[triggers.a]\nworkflow = \"deploy\"\nscheme = \"{scheme}\"\n");
            let settings = parse(&format!("{head}secrets = [\"AQID\"]\n{rest}")).unwrap();
            settings.triggers[0].replay_memory
        };
        assert_eq!(memory("github", ""), Some(Ttl::from_secs(86_400)));
        assert_eq!(memory("github", "replay_memory = \"24h\""), Some(Ttl::from_secs(86_400)));
        assert_eq!(memory("stripe", "replay_memory = \"10m\""), Some(Ttl::from_secs(600)));
        assert_eq!(memory("github", "replay_memory = \"0s\""), None);
    }

    #[test]
    fn secrets_are_found_beside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "quiet\n").unwrap();
        let text = format!(
            "{BASE}[triggers.push]\nworkflow = \"deploy\"\nscheme = \"github\"\nsecrets = [\"file:secret\"]"
        );
        let file = folder.path().join("leasehold.toml");
        std::fs::write(&file, text).unwrap();
        let settings = Settings::read(&file).unwrap();
        assert_eq!(settings.triggers[0].secrets, [Secret::new(Scheme::Github, "quiet").unwrap()]);
        let missing = Settings::read(&folder.path().join("other.toml")).unwrap_err();
        assert!(missing.to_string().contains("other.toml cannot be read"), "{missing}");
    }
}

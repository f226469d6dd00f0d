//! PostgreSQL without leasehold, with pgbench: the speed of the server with a client that costs almost nothing.

use anyhow::{Context, Result};

use super::postgres::{create, fetch, insert};
use crate::pgbench::Pgbench;
use crate::sandbox::Sandbox;
use crate::tasks::plan::Sample;

impl Pgbench {
    pub(in crate::tasks) fn enqueue(
        &self,
        sandbox: &Sandbox,
        clients: u32,
        batch: u32,
        seconds: f64,
    ) -> Result<Sample> {
        create(sandbox, 0)?;
        let script = insert(&sandbox.namespace(), batch) + ";\n";
        let whole_seconds = format!("{:.0}", seconds.ceil());
        let output =
            self.run(sandbox, &script, &["--client", &clients.to_string(), "--time", &whole_seconds])?;
        rate(&output, batch)
    }

    /// One client repeatedly takes a batch and deletes it.
    pub(in crate::tasks) fn drain(&self, sandbox: &Sandbox, tasks: u64, batch: u32) -> Result<Sample> {
        create(sandbox, tasks)?;
        let (schema, again) = (sandbox.namespace(), (tasks / u64::from(batch)).to_string());
        let script = format!(
            "WITH taken AS ({}) SELECT array_agg(id)::text AS ids, string_agg(payload, ' ') AS payloads FROM taken \\gset\n\
             DELETE FROM {schema}.raw WHERE id = ANY (:ids::bigint[]);\n",
            fetch(&schema, batch)
        );
        rate(&self.run(sandbox, &script, &["--client", "1", "--transactions", &again])?, batch)
    }
}

/// Returns the tasks per second, at `batch` tasks per transaction.
fn rate(output: &str, batch: u32) -> Result<Sample> {
    let tps = output.lines().find_map(|line| line.strip_prefix("tps = "));
    let tps = tps.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    let rate = tps.context("the output of pgbench has no transaction rate")? * f64::from(batch);
    Ok(Sample { rate: Some(rate), times: None })
}

//! Locks whose rows another session has locked: each gets a connection of its own, so that the
//! other operations of the lane do not wait for them.
//!
//! On a lane an operation waits briefly for its row. If the row stays locked, the operation is set
//! aside together with all operations that arrive for the same lock meanwhile; this keeps the
//! operations on one lock in order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::general::Patience;
use super::lane::{Job, Lane};
use super::native;
use super::session::{STEP, Session, within};
use crate::model::LockName;

impl Lane {
    /// Sets aside the operations of a batch whose lock rows another session has locked, and returns
    /// the others.
    pub(super) async fn set_aside_the_stuck(
        self: &Arc<Self>,
        session: &Arc<Session>,
        jobs: Vec<Job>,
    ) -> Vec<Job> {
        let names: Vec<&str> = jobs.iter().map(|job| job.bound.name.as_str()).collect();
        let stuck = match within(STEP, native::stuck(session, &names)).await {
            Ok(stuck) => stuck,
            Err(fail) => {
                self.part_from(session, &fail);
                return jobs;
            }
        };
        let (aside, others): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| stuck.contains(&job.bound.name));
        for job in aside {
            self.set_aside(job);
        }
        others
    }

    /// Sets an operation aside, behind earlier ones for the same lock.
    pub(super) fn set_aside(self: &Arc<Self>, job: Job) {
        let mut state = self.state();
        let name = job.bound.name.clone();
        if let Some(aside) = state.aside.get_mut(&name) {
            return aside.push_back(job);
        }
        state.aside.insert(name.clone(), VecDeque::from([job]));
        self.gate.home().spawn(self.clone().work_aside(name));
    }

    /// Sets aside the operations whose lock already has operations set aside, and returns the
    /// others.
    pub(super) fn without_those_aside(self: &Arc<Self>, jobs: Vec<Job>) -> Vec<Job> {
        if self.state().aside.is_empty() {
            return jobs;
        }
        let (aside, others): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| self.state().aside.contains_key(&job.bound.name));
        for job in aside {
            self.set_aside(job);
        }
        others
    }

    /// Executes the operations that were set aside for one lock, until none is left.
    async fn work_aside(self: Arc<Self>, name: LockName) {
        loop {
            let jobs: Vec<Job> = {
                let mut state = self.state();
                let jobs =
                    state.aside.get_mut(&name).map(|jobs| jobs.drain(..).collect()).unwrap_or_default();
                if Vec::is_empty(&jobs) {
                    state.aside.remove(&name);
                    return;
                }
                jobs
            };
            // None of these has been executed, so operations whose caller no longer waits are
            // dropped.
            let jobs: Vec<Job> = jobs.into_iter().filter(Job::is_wanted).collect();
            let Ok(_room) = self.gate.aside.acquire().await else { return };
            let opened = match self.gate.open().await {
                Ok(session) => {
                    within(STEP, self.gate.abandoned.end_all(session.client())).await.map(|()| session)
                }
                Err(fail) => Err(fail),
            };
            match opened {
                Ok(session) => {
                    self.by_the_rules(&session, &name, jobs, Patience::Long).await;
                    if !session.is_closed() {
                        self.gate.keep(session);
                    }
                }
                Err(fail) => {
                    let error = fail.explain(&self.gate.place);
                    for job in jobs {
                        job.answer(Err(error.clone()));
                    }
                }
            }
        }
    }
}

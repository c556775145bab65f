"""The name under which users' hooks import `Episode`."""

from offpolicy.collect.episode_hook import Episode as Episode

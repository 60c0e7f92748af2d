"""Real clients at work while what serves them is killed, stops or joins."""

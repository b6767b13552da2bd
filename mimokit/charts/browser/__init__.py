"""JavaScript and CSS that widgets and saved pages share; plain modules, without a build step."""

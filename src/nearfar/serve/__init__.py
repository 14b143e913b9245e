"""The page of a run in a browser (search, classes, map, audit, scores) and the JSON API behind it.

`collection.open_collection(run)` opens the data to serve, `api.create_app(collection)` returns the application,
`server.guard_app(app)` adds access control, and `server.serve(run)` does all of it and runs a server. Install it with
`pip install -e '.[web]'` in the project folder.
"""

"""The page of a run in a browser (search, classes, map, audit, scores) and the JSON API behind it.

`collection.open_collection(run)` opens the data to serve, `api.create_app(collection)` returns the application, and
`server.guard_app(app)` adds access control. `server.serve(run)` does all three and runs the server. Install the
dependencies with `pip install -e '.[web]'` in the project folder.
"""

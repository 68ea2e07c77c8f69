"""What goes over the wire: records and everything else, as bytes.

codec.py       records as JSON, NDJSON and Arrow; sheet.py, as CSV
arrow_in.py    Arrow from strangers; arrow_out.py, Arrow in the pieces that it lies in
nesting.py     how deeply JSON may be nested
cloudevents.py CloudEvents as records
filtering.py   which records of a batch are wanted
wire.py        the bodies of the routes, as types; wire_live.py, those of streams;
  wire_rooms.py, of groups, queues and routes; wire_overview.py, of the console
"""
